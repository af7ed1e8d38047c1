"""`trtla bench`: flags, checks and printing; the work is in trtla.extras.bench."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.shared import options as opt
from trtla.cli.shared.command import Command
from trtla.cli.shared.flags import flags_as
from trtla.cli.shared.model import (
    check_drafters,
    check_heads,
    check_length,
    check_triples,
    check_vocabulary,
    model_at,
    note_without_drafts,
)
from trtla.cli.shared.outputs import check_folder
from trtla.cli.shared.templates import check_texts
from trtla.cli.shared.values import TOKENS
from trtla.console import Console
from trtla.errors import TORCH, TrtlaError, UsageError, require
from trtla.extras.bench.arms import ways as arms_of
from trtla.extras.bench.flags import (
    DTYPES,
    BenchFlags,
    check_batch_size,
    check_choices,
    drafter_arms,
    filters_of,
    flag_of,
    remember_format,
    shared_setup,
)
from trtla.extras.bench.output import run_and_show
from trtla.extras.bench.peers import (
    BATCHING,
    HUGGING_FACE,
    INSTALL_LLAMA_CPP,
    LLAMA_CPP,
    PEERS,
    gguf_of,
)
from trtla.extras.bench.ways import PLAIN, Way, short_heads
from trtla.settings.drafting import LOOKAHEAD, NO_DRAFTER, DrafterSettings, parse_drafter
from trtla.settings.executor import ExecutorOptions
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead, LookaheadConfig
from trtla.settings.sampling import BEYOND, SamplingParams

if TYPE_CHECKING:
    from trtla.extras.bench.sweep import Sweep


@click.command(
    cls=Command,
    short_help="Lookahead, plain decoding and peers, measured in rounds.",
    examples=[
        "trtla bench model.gguf --compare llama.cpp",
        "trtla bench engine --lookahead 7,7,7 3,4,2",
        "trtla bench llama-3-8b --compare hf,hf-prompt-lookup --dtype bfloat16",
        "trtla bench model.gguf --ablation --draft-model SMALL -o ablation.csv",
        "trtla bench engine --batch-size 1,4,8 --prompts code --temperature 0 --output-format csv",
    ],
)
@opt.engine_flags("Arms")
@opt.flags_of(BenchFlags)
@opt.options_of(
    ExecutorOptions, "Arms", only=("max_seq_len", "kv_cache_dtype"), max_seq_len={"type": TOKENS}
)
@opt.chat_flags
@opt.template_flags("Prompts")
@opt.length_flag(default=128, help="Tokens to write.")
@opt.options_of(SamplingParams, "Sampling", only=("top_k", "top_p", *BEYOND))
@drafter_arms
@opt.corpus_flag
@opt.draft_flags
@opt.trtllm_flags
@opt.switch(
    "--json",
    section="Output",
    is_eager=True,
    callback=remember_format,
    help="Same as --output-format json.",
)
@click.pass_obj
def bench(console: Console, /, **values: Any) -> None:
    """Measure arms in rounds, in one process: plain decoding, lookahead triples, peers.

    Every arm warms up on the first batch, then all decode in rounds (A B A B). Figures are medians
    over rounds; speed-up is over plain decoding (ar) of the same round. S is tokens per step,
    efficiency is speed-up / S. A low share of distinct 4-grams says that texts loop, which flatters
    S.
    """
    if values.pop("json"):
        values["output_format"] = "json"
    if values["arms"] and values["ablation"]:
        raise UsageError("--ablation is --arms with a shipped file", "omit one of them")
    flags = flags_as(BenchFlags, values)
    sweep = _check(console, flags)
    drafting = [(way.lookahead, way.drafter) for way in sweep.ways[1:]]
    note_without_drafts(console.note, flags.engine_dir, drafting)
    check_texts(console, flags.asking, flags.engine_dir, flags.options, sweep.sets)
    run_and_show(console, sweep, flags.output_format, wide=flags.wide)


def _check(console: Console, flags: BenchFlags) -> Sweep:
    from trtla.data.prompt_sets import load_sets
    from trtla.extras.bench.decoding_table import check_decodings

    check_choices("--dtype", flags.dtype, DTYPES)
    check_choices("--compare", flags.compare, PEERS)
    _check_peers(flags)
    filters = filters_of(flags)
    sampling = [replace(flags.sampling, seed=flags.seed, **each._asdict()) for each in filters]
    arms = _listed(console, flags)
    if flags.output is not None:
        check_folder(Path(flags.output), "--output")
        check_decodings(Path(flags.output))
    lookahead = _lookahead(flags, arms)
    check_batch_size(flags.engine_dir, max(flags.batch_size))
    check_length(flags.engine_dir, flags.options.max_seq_len)
    names = [parse_drafter(name) for name in dict.fromkeys(flags.drafter)]
    drafters = [replace(flags.options.drafter, drafter=name) for name in names]
    ways = short_heads((PLAIN, *arms) if arms else _ways(flags.lookahead, drafters))
    drafters = [way.drafter for way in ways]
    named = [(_arms_flag(flags), drafter) for drafter in drafters]
    models = check_drafters(flags.engine_dir, named, flags.options)
    check_heads(flags.engine_dir, named, flags.options)
    sets = load_sets(flags.prompts, flags.categories, flags.num_prompts)
    from trtla.extras.bench.sweep import Sweep

    return Sweep(
        **shared_setup(flags, lookahead, drafters, models),
        sampling=sampling[0],
        batch_sizes=flags.batch_size,
        ways=ways,
        peers=tuple(dict.fromkeys(flags.compare)),
        hf_model_dir=flags.hf_model_dir,
        assistant_dir=flags.assistant_dir,
        sets=tuple(sets),
        prompt_lens=flags.prompt_len,
        filters=filters,
        rounds=flags.rounds,
        output=None if flags.output is None else Path(flags.output),
    )


def _listed(console: Console, flags: BenchFlags) -> list[Way]:
    """Return the arms of a file; the shipped draft model drafts for its own vocabulary alone."""
    described = flags.arms or flags.ablation
    if described is None:
        return []
    if flags.given.by_flag("drafter"):
        raise UsageError(
            f"--drafter and {_arms_flag(flags)} exclude each other", "name it in an arm of a file"
        )
    arms = arms_of(described, flags.draft_model)
    if flags.given.explicit("draft_model"):
        return arms
    try:
        check_vocabulary(flags.draft_model, flags.engine_dir, flags.options.tokenizer_dir)
    except UsageError:
        left = [arm for arm in arms if arm.drafter.draft_model != flags.draft_model]
        if names := ", ".join(dict.fromkeys(arm.name for arm in arms if arm not in left)):
            console.note(f"note: {names} need a --draft-model of this vocabulary, and are skipped")
        return left
    return arms


def _arms_flag(flags: BenchFlags) -> str:
    """The flag that names the drafters of the arms."""
    return "--ablation" if flags.ablation else "--arms" if flags.arms else "--drafter"


def _ways(triples: Sequence[Lookahead], drafters: Sequence[DrafterSettings]) -> tuple[Way, ...]:
    """List plain decoding, triples of lookahead alone, then other drafters and chains.

    The last draft with the largest triple if one is named, else with that of the opened model;
    trained heads draft with auto, which knows what they cost.
    """
    alone, names = (LOOKAHEAD.drafter, NO_DRAFTER.drafter), [each.drafter for each in drafters]
    named: Sequence[Lookahead | None] = triples
    if not triples and (not names or LOOKAHEAD.drafter in names):
        named = (None,)
    largest = any(triple != "auto" for triple in triples)
    others = [drafter for drafter in drafters if drafter.drafter not in alone]
    return (
        PLAIN,
        *(Way("", triple) for triple in named),
        *(
            Way(drafter.name, "auto", drafter)
            if drafter.head
            else Way(drafter.name, None, drafter, largest=largest)
            for drafter in others
        ),
    )


def _lookahead(flags: BenchFlags, arms: Sequence[Way]) -> LookaheadConfig | None:
    """Return the triple with which the model is opened and all others fit; None: the engine's."""
    # An engine of trtllm-build does not say its triple, and a Hugging Face folder has none.
    has_triple = (Path(flags.engine_dir) / "trtla.json").is_file()
    listed = [arm.lookahead for arm in arms if arm.lookahead not in (None, AUTOREGRESSIVE)]
    named = [*flags.lookahead, *(triple for triple in listed if triple is not None)]
    fixed, lookahead = [triple for triple in named if triple != "auto"], None
    if fixed and not has_triple:
        sizes = [triple.as_tuple() for triple in (*fixed, AUTOREGRESSIVE)]
        lookahead = LookaheadConfig(*map(max, zip(*sizes, strict=True)))
    check_triples(flags.engine_dir, lookahead, (("--lookahead", triple) for triple in named))
    return lookahead


def _check_peers(flags: BenchFlags) -> None:
    """Refuse peers that cannot load the model, cannot take the batches or are not installed."""
    loaded = [name for name in flags.compare if name in HUGGING_FACE]
    is_engine = model_at(flags.engine_dir).kind == "engine"
    if loaded and is_engine and not flags.hf_model_dir:
        raise UsageError(
            f"--compare needs a Hugging Face model, and {flags.engine_dir} is an engine",
            "give the folder that it was made from with --hf-model-dir",
        )
    if "hf-assisted" in flags.compare and not flags.assistant_dir:
        raise UsageError("hf-assisted needs a small model", "give --assistant-dir MODEL")
    for name in filter(flags.given.explicit, BEYOND if flags.compare else ()):
        raise UsageError(
            f"{flag_of(name)} and --compare exclude each other: peers decode without", "omit one"
        )
    single = [name for name in flags.compare if name not in BATCHING]
    if single and 1 not in flags.batch_size:
        raise UsageError(
            f"{single[0]} decodes one prompt at a time, and --batch-size has no 1",
            "add 1 to --batch-size, or omit the peer",
        )
    if loaded:
        require(f"--compare {loaded[0]}", *TORCH)
    if needing := [name for name in flags.compare if name in LLAMA_CPP]:
        if find_spec("llama_cpp") is None:
            raise TrtlaError(
                f'--compare {needing[0]} needs the package "llama-cpp-python"', INSTALL_LLAMA_CPP
            )
        gguf_of(flags.engine_dir, flags.hf_model_dir)
