"""TensorRT-LLM's programs by the commands that take their place."""

from __future__ import annotations

from trtla.settings.upstream.build import BUILD
from trtla.settings.upstream.convert import CONVERT
from trtla.settings.upstream.option import Program
from trtla.settings.upstream.run import RUN, SUMMARIZE

PROGRAMS: dict[str, Program] = {item.command: item for item in (CONVERT, BUILD, RUN, SUMMARIZE)}
