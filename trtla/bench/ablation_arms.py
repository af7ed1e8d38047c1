"""An ablation's arms and cases: which drafter with which settings, and on which prompts.

The defaults are the four arms that speculative-decoding demos compare (plain, a fixed gamma, EGAG,
n-grams), and beside them prompt lookup, lookahead, lookahead auto and a chain. Further arms are
auto without one of its sources, and with so many nodes in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from trtla.errors import UsageError, did_you_mean
from trtla.files import ASSETS, parse_jsonl, read_text
from trtla.settings.drafting import (
    DRAFT_PREFIX,
    LOOKAHEAD,
    NO_DRAFTER,
    SOURCES,
    DrafterSettings,
    DraftOptions,
    NgramKind,
)
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead, LookaheadConfig
from trtla.settings.sampling import Processor, SamplingParams

AR = "ar"
METHODS = (
    AR, "sd", "egag", "nasd", "prompt-lookup", "lookahead", "lookahead-auto", "chain"
)  # fmt: skip
"""The arms, in the order in which they run."""
_WITHOUT, _NODES = "auto-without-", "auto-nodes"
SOURCE_METHODS = (
    "lookahead-auto", *(f"{_WITHOUT}{name}" for name in ("own", "others", "rows", "window")), _NODES
)  # fmt: skip
"""What the candidate tree is worth: whole, without each of its sources, and by size."""
KNOWN_METHODS = tuple(dict.fromkeys((*METHODS, *SOURCE_METHODS)))

TASKS = ("dialogue", "translation", "continuation", "code")
"""The sets that come with trtla."""
OWN_PROMPT = "prompt"
"""The task of a prompt that was given with --prompt."""
_FOLDER = ASSETS / "ablation"


@dataclass(frozen=True, slots=True)
class AblationArm:
    """One way of decoding."""

    method: str
    drafting: DrafterSettings
    lookahead: Lookahead | None
    """None: the engine's own triple."""
    options: DraftOptions | None = None
    """What auto drafts with; None: as the model is opened."""

    @property
    def cells(self) -> dict[str, object]:
        """What the arm is set to, by the columns of the table; a folder without the way to it."""
        own, kinds = self.drafting, {name.partition(":")[0] for name in self.drafting.drafter}
        found: dict[str, object] = {"method": self.method}
        if own.egag:
            found |= {"gamma_policy": "egag", "ema_beta": own.ema}
            found |= {"gamma_min": own.gamma_min, "gamma_max": own.gamma_max}
        elif own.most_tokens:
            found |= {"gamma_policy": "fixed", "gamma": own.gamma}
        elif self.options is not None and self.options.nodes is not None:
            found |= {"gamma_policy": "fixed", "gamma": self.options.nodes}
        if "ngram" in kinds:
            found |= {"ngram_kind": own.ngram_kind, "ngram_n": own.ngram_order}
            found["top_k_filler"] = own.top_k_filler
        if own.uses_lookahead and isinstance(self.lookahead, LookaheadConfig):
            names = ("window", "ngram", "guesses")
            found |= zip(names, self.lookahead.as_tuple(), strict=True)
        if own.draft_model is not None:
            found["drafter"] = Path(own.draft_model).resolve().name
        return found


def arms(
    methods: Sequence[str],
    draft_model: str,
    triples: Sequence[LookaheadConfig],
    *,
    gammas: Sequence[int],
    gamma_maxs: Sequence[int],
    emas: Sequence[float],
    ngram_kinds: Sequence[NgramKind],
    ngram_orders: Sequence[int],
    top_k_fillers: Sequence[int],
    nodes: Sequence[int] = (),
) -> list[AblationArm]:
    """`ar`, then the methods; every combination of a method's lists is an arm of its own.

    Args:
        draft_model: of sd, egag and the chain.
        triples: of lookahead, the chain has the first; empty: the engine's own.
        gammas: of sd, nasd, prompt-lookup and the chain; `gamma_maxs` and `emas` are egag's.
        ngram_kinds: of nasd, the chain has the first; `ngram_orders` and `top_k_fillers` of both.
        nodes: of auto-nodes.
    """
    draft = f"{DRAFT_PREFIX}{draft_model}"
    chain = (draft, "lookahead", "ngram")
    made: dict[str, Callable[[], list[DrafterSettings]]] = {
        AR: lambda: [NO_DRAFTER],
        "sd": lambda: [DrafterSettings((draft,), gamma) for gamma in gammas],
        "egag": lambda: [
            DrafterSettings((draft,), most, egag=True, gamma_max=most, ema=ema)
            for most, ema in product(gamma_maxs, emas)
        ],
        "nasd": lambda: [
            _ngram(("ngram",), *one)
            for one in product(gammas, ngram_kinds, ngram_orders, top_k_fillers)
        ],
        "prompt-lookup": lambda: [DrafterSettings(("prompt-lookup",), gamma) for gamma in gammas],
        "lookahead": lambda: [LOOKAHEAD],
        "lookahead-auto": lambda: [LOOKAHEAD],
        "chain": lambda: [
            _ngram(chain, *one)
            for one in product(gammas, ngram_kinds[:1], ngram_orders, top_k_fillers)
        ],
    }
    fed: dict[str, Sequence[Lookahead | None]] = {
        "lookahead": triples or (None,),
        "lookahead-auto": ("auto",),  # bounded by the engine's triple in every step
        "chain": triples[:1] or (None,),
    }
    return [
        AblationArm(name, drafting, lookahead)
        for name in METHODS
        if name == AR or name in methods
        for drafting in made[name]()
        for lookahead in fed.get(name, (AUTOREGRESSIVE,))
    ] + _tree_arms(methods, nodes)


def _tree_arms(methods: Sequence[str], nodes: Sequence[int]) -> list[AblationArm]:
    return [
        AblationArm(name, LOOKAHEAD, "auto", options)
        for name in SOURCE_METHODS[1:]
        if name in methods
        for options in _tree_options(name, nodes)
    ]


def _tree_options(method: str, nodes: Sequence[int]) -> list[DraftOptions]:
    if method == _NODES:
        return [DraftOptions(nodes=count) for count in nodes]
    left = tuple(name for name in SOURCES if name != method.removeprefix(_WITHOUT))
    return [DraftOptions(sources=left)]


def _ngram(
    names: tuple[str, ...], gamma: int, kind: NgramKind, order: int, filler: int
) -> DrafterSettings:
    return DrafterSettings(names, gamma, ngram_kind=kind, ngram_order=order, top_k_filler=filler)


@dataclass(frozen=True, slots=True)
class TaskPrompt:
    """One prompt of a task."""

    task: str
    prompt_id: int
    """Its place in the task's file, from 0."""
    text: str
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """What all arms decode before the next case begins."""

    prompt: TaskPrompt
    processor: Processor
    repeat: int
    seed: int

    def sampling(self, shared: SamplingParams) -> SamplingParams:
        """What all cases share, with this one's filters and seed."""
        temperature, top_k, top_p = self.processor.filters
        return replace(shared, temperature=temperature, top_k=top_k, top_p=top_p, seed=self.seed)

    @property
    def cells(self) -> dict[str, object]:
        """The case by the columns of the table; filters that are off stay empty."""
        chosen, prompt = self.processor, self.prompt
        return {
            "processor": chosen.name,
            "temperature": chosen.temperature,
            "top_k": chosen.top_k or None,
            "top_p": chosen.top_p if chosen.top_p < 1.0 else None,
            "seed": self.seed,
            "repeat": self.repeat,
            "task": prompt.task,
            "prompt_id": prompt.prompt_id,
        }


def load_tasks(tasks: Sequence[str], limit: int | None = None) -> list[TaskPrompt]:
    """The prompts of shipped tasks, at most `limit` of each."""
    for task in tasks:
        if task not in TASKS:
            guess = did_you_mean(task, TASKS)
            raise UsageError(f"there is no task {task}", f"{guess}there are {', '.join(TASKS)}")
    return [prompt for task in tasks for prompt in _load(task)[:limit]]


def _load(task: str) -> list[TaskPrompt]:
    path = _FOLDER / f"{task}.jsonl"
    from trtla.data.prompt_sets import SetLine  # pydantic, which --help does without

    lines = parse_jsonl(SetLine, read_text(path), path.name)
    return [
        TaskPrompt(task, index, line.text or "", line.reference)
        for index, (_, line) in enumerate(lines)
    ]


def cases(
    prompts: Sequence[TaskPrompt], processors: Sequence[Processor], repeats: int, seed: int
) -> Iterator[Case]:
    """Round by round, each of which has every prompt once; repeat i has seed + i.

    What an arm learns from one prompt for the next is its own of the round.
    """
    for processor, repeat, prompt in product(processors, range(repeats), prompts):
        yield Case(prompt, processor, repeat, seed + repeat)
