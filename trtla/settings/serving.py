"""Settings of serving: address, limits and keys of the server. Torch-free."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trtla.errors import UsageError, named
from trtla.settings.fields import check, option

_ORIGIN = re.compile(r"https?://[^/\s]+")
_MOST_SECONDS = 10_000_000
_MOST_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings of `trtla serve` beside the model's."""

    host: str = option(
        "127.0.0.1", "Address to listen on; 0.0.0.0 is every one of this machine: give a key then."
    )
    port: int = option(8000, "Port to listen on; 0 takes a free one.", most=65535)
    api_key_file: str | None = option(
        None,
        "File with the keys that clients may use, one a line; it is read once.",
        metavar="FILE",
        shown="no key is needed",
    )
    isolate_keys: bool = option(
        False,
        "Share K/V blocks and what drafts are taken from only between requests with the same key, "
        "so that no answer says anything of what others ask.",
    )
    served_model_name: str | None = option(
        None, "The model's name in the API.", metavar="NAME", shown="that of its folder or file"
    )
    allow_origin: tuple[str, ...] = option(
        (), "Origins whose web pages may use the server, such as https://example.org."
    )
    max_queue: int = option(
        256, "Most texts that wait for a place in the batch; further ones are answered with 429."
    )
    request_timeout: float = option(
        600.0,
        "Seconds after which a request is given up, waiting included.",
        rule=f"a number, above 0 and at most {_MOST_SECONDS}",
        least=0.001,
        most=_MOST_SECONDS,
    )
    max_body: int = option(
        1 << 20, "Most bytes of a request's body, such as 64KiB or 1MiB.", least=1, most=_MOST_BYTES
    )
    json_logs: bool = option(False, "Write the log as JSON lines.")

    def __post_init__(self) -> None:
        check(self)
        if self.isolate_keys and self.api_key_file is None:
            raise UsageError(
                f"{named('isolate_keys')} keeps keys apart, and there are none",
                f"give an {named('api_key_file')}",
            )
        for origin in self.allow_origin:
            if not _ORIGIN.fullmatch(origin):
                raise UsageError(
                    f"allow_origin is {origin!r}, not an origin",
                    "write scheme and host, such as https://example.org",
                )
