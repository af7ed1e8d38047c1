"""Web pages of other origins that may use a server."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

_ASKED = "access-control-request-private-network"


class Origins(CORSMiddleware):
    """CORS for allowed origins, pages from the internet that ask a private network included."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Answer a browser's question in front of a request."""
        others = [pair for pair in request_headers.raw if pair[0] != _ASKED.encode()]
        response = super().preflight_response(Headers(raw=others))
        if _ASKED in request_headers and response.status_code == 200:
            response.headers["Access-Control-Allow-Private-Network"] = "true"
        return response
