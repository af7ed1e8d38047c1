"""The flags of `trtla run` as click parsed them."""

from __future__ import annotations

from dataclasses import dataclass

import click

from trtla.cli.shared import options as opt
from trtla.cli.shared.model import CorpusFlags
from trtla.cli.shared.values import LOOKAHEAD
from trtla.settings.lookahead import Lookahead
from trtla.settings.messages import Asking
from trtla.settings.sampling import BeamSettings


@dataclass(frozen=True, kw_only=True)
class RunFlags(CorpusFlags):
    """The command's flags as click parsed them."""

    input_text: tuple[str, ...] = opt.flag(
        "Prompts, several after one flag; - reads one from stdin, as a pipe does without this.",
        "-p",
        section="Prompts",
        basic=True,
        several=True,
    )
    input_file: str | None = opt.flag(
        "A .txt file, one prompt a line; a .jsonl file of text, messages, input_ids or turns; "
        "rows of ids, .csv, .npy or .npz; - is stdin.",
        section="Prompts",
        basic=True,
        type=click.Path(allow_dash=True),
    )
    expected_output: tuple[str, ...] = opt.flag(
        "What the outputs are expected to be like, such as a text that a prompt asks to edit: auto "
        "takes drafts from it, no text changes. One for all prompts, or one a prompt; - is stdin.",
        section="Prompts",
        metavar="TEXT|@FILE",
        several=True,
    )
    continue_final_message: bool = opt.flag(
        "Continue the last message of the file's conversations, an assistant's, instead of "
        "answering it.",
        section="Prompts",
    )
    request_lookahead: tuple[Lookahead, ...] = opt.flag(
        "The requests' own triples, at most that of --lookahead, or auto: one for all prompts, or "
        "one a prompt.",
        section="Model",
        type=LOOKAHEAD,
        metavar="W,N,G|auto",
        show_default="that of --lookahead",
        several=True,
    )
    no_lookahead: bool = opt.flag("Decode every request with 1,1,0.", section="Model")
    stream: bool = opt.flag(
        "Print text as it comes, as at a terminal.", section="Output", basic=True
    )
    check_lossless: bool = opt.flag(
        "Decode again with 1,1,0 and compare; exit code 3 when a text differs.",
        section="Output",
        basic=True,
    )
    wide: bool = opt.wide_flag("Output")
    output_csv: str | None = opt.flag(
        "Write token ids to this file as TensorRT-LLM's run.py does: a row a text, prompt and "
        "output, padded to one length with the end token.",
        section="Output",
        type=opt.PATH,
    )
    output_npy: str | None = opt.flag(
        "Write the same rows as an int32 array of NumPy.", section="Output", type=opt.PATH
    )

    asking: Asking
    color: str
    beams: BeamSettings
    num_return_sequences: int | None
    end_id: int | None
