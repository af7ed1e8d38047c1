"""`trtla run` with an open model: decodes or searches, and prints the results.

People get the texts as TensorRT-LLM's run.py prints them, then one table. With --quiet they get the
bare texts, each ended by a newline.

Several streamed texts are shown one after another: the first one live, later ones from as far as
they have got when their turn comes.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from trtla.cli.run.reading import reading
from trtla.console import Console, counted
from trtla.errors import CheckFailed
from trtla.results.doubts import HeadDoubts
from trtla.results.metrics import Metrics
from trtla.results.run import (
    Decoded,
    certain_loss,
    decode,
    divergence,
    document,
    lookahead_loss,
    search,
    warm_up,
)
from trtla.runtime.stats import COUNTERS
from trtla.settings.messages import is_conversation, joined

if TYPE_CHECKING:
    from trtla.llm.llm import LLM, Chunk, Completion, Piece
    from trtla.llm.prompt import Prompt, PromptRequest
    from trtla.results.documents import Beam, BeamSearch, PromptBeams
    from trtla.settings.sampling import BeamSettings

_COUNTED = [name for name, item in COUNTERS.items() if "run" in item.documents and name != "steps"]
_USUAL = ("text", "tokens/s", "tokens/step", "speed-up", "as plain", "first token")
COLUMNS = (*_USUAL, "tokens", "steps", *_COUNTED, "distinct 4-grams")
"""The columns of the table, which --wide prints whole; each is shown if a row has it."""
BEAM_COLUMNS = ("text", "beam", "tokens", "score", "log prob", "finished")


_MOST_LINES = 4
"""Lines of a prompt that a terminal shows whole."""


class Transcript:
    """Prints chunks as they arrive, and everything else at the end."""

    def __init__(
        self, console: Console, requests: Sequence[PromptRequest], *, stream: bool, wide: bool
    ) -> None:
        self.console, self.requests, self.stream, self.wide = console, requests, stream, wide
        self.shown = 0  # index of the text being printed
        self.begun = False
        self.waiting: list[list[Chunk]] = [[] for _ in requests]

    def chunk(self, chunk: Chunk) -> None:
        """Print a chunk, or keep it until its text's turn."""
        if self.console.json:
            self._json_line(chunk)
            return
        self.waiting[chunk.index].append(chunk)
        while self.shown < len(self.waiting) and self.waiting[self.shown]:
            self._print(self.waiting[self.shown].pop(0))

    def _json_line(self, chunk: Chunk) -> None:
        line = {
            "index": chunk.index,
            "text": None if chunk.pieces is None else chunk.text,
            "token_ids": list(chunk.token_ids),
            "accepted": chunk.accepted,
            "finish_reason": chunk.completion.finish_reason if chunk.completion else None,
        }
        self.console.document(line, line=True)

    def _print(self, chunk: Chunk) -> None:
        if not self.begun:
            self.begun = True
            self._open(chunk.index)
        ids = "".join(f"{i} " for i in chunk.token_ids)
        self.console.out(ids if chunk.pieces is None else self._colour(chunk.pieces), end="")
        if chunk.completion is not None:
            self.console.out(self._end)
            self.begun, self.shown = False, self.shown + 1

    def _open(self, index: int) -> None:
        if not self.console.quiet:
            self.console.out(input_line(index, self.requests[index].prompt))
            self.console.out(f'Output [Text {index} Beam 0]: "', end="")

    @property
    def _end(self) -> str:
        return "" if self.console.quiet else '"'

    def finish(self, decoded: Decoded, plain: Decoded | None) -> None:
        """Print the rest: texts that were not streamed, the table, the comparison."""
        if not self.stream:
            for completion in decoded.completions:
                self._open(completion.index)
                self.console.out(self._output(completion) + self._end)
        if self.console.quiet:  # a differing text is an error
            return
        if plain is not None:
            self._compare(decoded, plain)
        self._table(decoded, plain)

    def _output(self, completion: Completion) -> str:
        if completion.input_text is None:  # no tokenizer
            return " ".join(map(str, completion.output_ids))
        return self._colour(completion.pieces)

    def _colour(self, pieces: Iterable[Piece]) -> str:
        if not self.console.colored:
            return "".join(piece for piece, _ in pieces)
        return "".join(
            self.console.styled(piece, fg="green") if accepted else piece
            for piece, accepted in pieces
        )

    def _compare(self, decoded: Decoded, plain: Decoded) -> None:
        for ours, theirs in zip(decoded.completions, plain.completions, strict=True):
            difference = divergence(ours, theirs)
            outcome = "equal to plain decoding" if difference is None else difference.describe()
            self.console.out(f"Lossless [Text {ours.index}]: {outcome}")

    def _table(self, decoded: Decoded, plain: Decoded | None) -> None:
        several = len(decoded.completions) > 1
        rows = [_text_row(done, plain) for done in decoded.completions] if several else []
        name = "all" if several else "0"
        rows.append(_totals_row(name, decoded, plain))
        if plain is not None:
            rows.append(_totals_row(f"{name}, plain", plain, None))
        names = [
            name
            for name in (COLUMNS if self.wide else _USUAL)
            if any(row.get(name) is not None for row in rows)
        ]
        self.console.out()
        self.console.table(names, [[row.get(name) for name in names] for row in rows])
        self.console.out(_prompts(decoded))


def _text_row(done: Completion, plain: Decoded | None) -> dict[str, object]:
    """The row of one text, by column; the times are those of all texts together."""
    row = _counts(done.index, Metrics.of([done], 0.0))
    if plain is not None:
        equal = divergence(done, plain.completions[done.index]) is None
        row["as plain"] = "yes" if equal else "no"
    return row


def _totals_row(name: object, decoded: Decoded, plain: Decoded | None) -> dict[str, object]:
    """The row of all texts, by column; `plain` is what they are compared with."""
    speed = decoded.decoded_tokens_per_s
    row = _counts(name, decoded.totals)
    row |= {"tokens/s": speed, "first token": f"{decoded.ttft_ms:.0f} ms"}
    if plain is not None:
        base, pairs = (
            plain.decoded_tokens_per_s,
            zip(decoded.completions, plain.completions, strict=True),
        )
        equal = sum(divergence(ours, theirs) is None for ours, theirs in pairs)
        row["speed-up"] = f"{speed / base:.2f}x" if speed and base else None
        row["as plain"] = f"{equal} of {len(plain.completions)}"
    return row


def _counts(name: object, totals: Metrics) -> dict[str, object]:
    return {
        "text": name,
        "tokens/step": totals.tokens_per_step,
        "tokens": totals.output_tokens,
        "steps": totals.steps,
        **{name: getattr(totals, name) for name in _COUNTED},
        "distinct 4-grams": totals.distinct_4grams,
    }


def _prompts(decoded: Decoded) -> str:
    """The speed of reading prompts, which the table's tokens/s leaves out."""
    several = len(decoded.completions) > 1
    speed = decoded.prompt_tokens_per_s
    return f"{'prompts' if several else 'prompt'}: {counted(decoded.prompt_tokens, 'token')}" + (
        f", {speed:.0f} tokens/s" if speed else ""
    )


def decode_and_report(
    console: Console,
    llm: LLM,
    requests: list[PromptRequest],
    *,
    stream: bool,
    check_lossless: bool,
    wide: bool,
) -> Decoded:
    """Decode, print and return; raises `CheckFailed` where a text differs from plain decoding."""
    slow = None if console.quiet else certain_loss(llm, requests)
    if slow:
        console.note(f"note: {slow}")
    if check_lossless:
        warm_up(llm, requests[0])  # or the first of the two runs would be slower
    transcript = Transcript(console, requests, stream=stream, wide=wide)
    on_chunk = transcript.chunk if stream else None
    watched = sys.stderr.isatty() and not console.quiet
    with reading(console, llm, requests) if watched else nullcontext() as read:
        decoded = decode(llm, requests, on_chunk=on_chunk, on_first=read or (lambda: None))
    unshown = (lambda chunk: None) if stream else None  # which is read as the other, for its time
    plain = decode(llm, requests, plain=True, on_chunk=unshown) if check_lossless else None
    console.note(f"note: ran on {llm.description}")
    if console.json:
        console.document(document(decoded, plain, llm.description), line=stream)
    else:
        transcript.finish(decoded, plain)
        for done in decoded.completions:
            if done.text == "" and done.finish_reason == "end_id" and len(done.output_ids) == 1:
                console.note(f"note: text {done.index} is empty: the model ended it at once")
    _note_cut(console, llm, decoded)
    for doubt in HeadDoubts().new(llm.stats().heads):
        console.note(f"note: {doubt}")
    if plain is not None:
        _require_lossless(decoded, plain)
    elif not (console.quiet or slow) and (loss := lookahead_loss(llm, requests, decoded)):
        console.note(f"note: {loss}")
    return decoded


def _note_cut(console: Console, llm: LLM, decoded: Decoded) -> None:
    """Report which texts ended at their length, and what allows longer ones."""
    cut = [done for done in decoded.completions if done.finish_reason == "length"]
    if not cut:
        return
    most = llm.limits.max_text_len
    full = any(len(done.input_ids) + len(done.output_ids) >= most for done in cut)
    lengths = sorted({len(done.output_ids) for done in cut})
    at = (
        counted(lengths[0], "token")
        if len(lengths) == 1
        else f"{lengths[0]} to {lengths[-1]} tokens"
    )
    whose = f"text {cut[0].index} is" if len(cut) == 1 else f"{len(cut)} texts are"
    more = f"the context of {most} tokens is full" if full else "-n allows more"
    console.note(f"note: {whose} cut at {at}; {more}")


def _require_lossless(decoded: Decoded, plain: Decoded) -> None:
    pairs = zip(decoded.completions, plain.completions, strict=True)
    different = [str(ours.index) for ours, theirs in pairs if divergence(ours, theirs)]
    if different:
        raise CheckFailed(
            f"{len(different)} of {len(plain.completions)} texts differ from plain decoding: "
            f"{', '.join(different[:8])}",
            "a margin near zero is rounding of a low-precision type, try --dtype float32; "
            "a large one is a bug",
        )


def input_line(index: int, prompt: Prompt) -> str:
    """The line above a prompt's outputs."""
    return f'Input [Text {index}]: "{_cut(_shown(prompt))}"'


def _cut(text: str) -> str:
    """The text, or at a terminal about a line of its beginning and one of its end."""
    columns = shutil.get_terminal_size().columns
    if not sys.stdout.isatty() or (len(text) <= 3 * columns and text.count("\n") < _MOST_LINES):
        return text
    parts = (" ".join(part.split()) for part in (text[:columns], text[-columns:]))
    first, last = parts
    begin, end = first[: columns - 8], last[-columns + 30 :]
    return f"{begin} ... {end} ({len(text)} characters)"


def _shown(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    if not is_conversation(prompt):
        return " ".join(map(str, prompt))
    if len(prompt) == 1:
        return joined(prompt[0]["content"])
    return "\n".join(f"{item['role']}: {joined(item['content'])}" for item in prompt)


def search_and_report(
    console: Console, llm: LLM, requests: list[PromptRequest], beams: BeamSettings, most: int | None
) -> BeamSearch:
    """Search, print and return at most `most` beams of every prompt."""
    searched = search(llm, requests, beams, most)
    console.note(f"note: ran on {llm.description}")
    if console.json:
        console.document(searched.document())
    else:
        _print_beams(console, requests, searched)
    return searched


def _print_beams(console: Console, requests: Sequence[PromptRequest], searched: BeamSearch) -> None:
    """The texts as TensorRT-LLM's run.py prints beams, then one table; bare texts when quiet."""
    if console.quiet:
        for prompt in searched.results:
            for beam in prompt.beams:
                console.out(_text(beam))
        return
    for request, prompt in zip(requests, searched.results, strict=True):
        console.out(input_line(prompt.index, request.prompt))
        for rank, beam in enumerate(prompt.beams):
            console.out(f'Output [Text {prompt.index} Beam {rank}]: "{_text(beam)}"')
    console.out()
    console.table(BEAM_COLUMNS, [row for prompt in searched.results for row in _beam_rows(prompt)])


def _text(beam: Beam) -> str:
    return " ".join(map(str, beam.output_ids)) if beam.text is None else beam.text


def _beam_rows(prompt: PromptBeams) -> Iterator[list[object]]:
    for rank, beam in enumerate(prompt.beams):
        figures = [f"{value:.4f}" for value in (beam.score, beam.log_prob)]
        ended = "yes" if beam.finished else "no"
        yield [prompt.index, rank, len(beam.output_ids), *figures, ended]
