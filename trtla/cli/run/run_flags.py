"""What `trtla run` was given: its flags as they were parsed."""

from __future__ import annotations

from dataclasses import dataclass

from trtla.cli.shared.drafter_options import CorpusFlags
from trtla.settings.lookahead import Lookahead
from trtla.settings.messages import Asking
from trtla.settings.sampling import BeamSettings


@dataclass(frozen=True)
class RunFlags(CorpusFlags):
    """The command's flags as click parsed them."""

    request_lookahead: tuple[Lookahead, ...]
    no_lookahead: bool
    input_text: tuple[str, ...]
    input_file: str | None
    expected_output: tuple[str, ...]
    asking: Asking
    stream: bool
    check_lossless: bool
    color: str
    beams: BeamSettings
    num_return_sequences: int | None
