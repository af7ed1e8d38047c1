"""From `DrafterSettings` to drafters: which classes a name stands for, and what requests share.

Draft models, n-grams kept from one request to the next and the lookahead pool are held here, for
as long as the executor lives.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trtla.runtime.draft import Drafter, NoDrafter
from trtla.runtime.drafters.chain import ChainDrafter
from trtla.runtime.drafters.draft_model import DraftModelDrafters
from trtla.runtime.drafters.lookahead import lookahead_drafter, new_window, random_from_prompt
from trtla.runtime.drafters.ngram import NgramDrafter, NgramStorage
from trtla.runtime.drafters.prompt_lookup import PromptLookupDrafter
from trtla.runtime.drafters.tree import TreeDrafter
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.request import DrafterFactory, Request
from trtla.runtime.tree.open import Trees, open_trees
from trtla.settings.drafting import DRAFT_PREFIX, DrafterSettings, DraftOptions
from trtla.settings.lookahead import LookaheadConfig

if TYPE_CHECKING:
    from trtla.settings.drafting import NgramKind


_MOST_SPACES = 16
"""Whose texts are kept to draft from; the least recently used ones begin anew."""


class Drafters(DrafterFactory):
    """Makes the drafters of an executor's requests.

    Args:
        limits: the executor's.
        options: how lookahead and trees draft.
        models: draft models by the path that `draft:PATH` names.
    """

    def __init__(
        self,
        limits: ExecutorLimits,
        options: DraftOptions,
        models: Mapping[str, DraftModelDrafters],
    ) -> None:
        self._limits, self._options, self._models = limits, options, models
        self._storages: dict[tuple[int, NgramKind], NgramStorage] = {}
        self._trees: Trees | None = None
        self._spaces: OrderedDict[int, Drafters] = OrderedDict()

    def __call__(self, lookahead: LookaheadConfig, request: Request) -> Drafter:
        """The drafter of a request that is decoded with this triple, both within the limits."""
        if request.private:  # what it would share with others it shares with none
            return self.fresh()(lookahead, replace(request, private=False, space=0))
        if request.space:
            return self._of(request.space)(lookahead, replace(request, space=0))
        settings = self._limits.drafter_of(request)
        names = settings.drafter
        if lookahead.is_autoregressive:
            names = tuple(name for name in names if name != "lookahead")
        if request.adaptive and names != ("none",):
            return self._tree(lookahead, request, settings)
        drafters = [self._make(name, lookahead, request, settings) for name in names]
        if not drafters:
            return NoDrafter()
        if len(drafters) == 1:
            return drafters[0]
        windowed = names.index("lookahead") if "lookahead" in names else None
        return ChainDrafter(drafters, settings.max_draft_len(lookahead), windowed)

    def reset(self) -> None:
        """Begin anew with all that requests share."""
        for model in self._models.values():
            model.reset()
        self._storages, self._trees, self._spaces = {}, None, OrderedDict()

    def fresh(self, options: DraftOptions | None = None) -> Drafters:
        """With the same draft models, and nothing else of what requests share."""
        return Drafters(self._limits, options or self._options, self._models)

    def _of(self, space: int) -> Drafters:
        """Those of a space, which share nothing with any other."""
        if space not in self._spaces:
            self._spaces[space] = self.fresh()
            if len(self._spaces) > _MOST_SPACES:
                self._spaces.popitem(last=False)
        self._spaces.move_to_end(space)
        return self._spaces[space]

    def _make(
        self, name: str, triple: LookaheadConfig, request: Request, settings: DrafterSettings
    ) -> Drafter:
        if name == "none":
            return NoDrafter()
        if name == "lookahead":
            return lookahead_drafter(triple, request, self._options)
        if name == "prompt-lookup":
            most = request.sampling.max_output_len
            return PromptLookupDrafter(settings.gamma, request.known_ids, most)
        if name == "ngram":
            storage = None if settings.reset_in_between else self._kept(settings)
            return NgramDrafter(settings, request, self._limits.vocab_size, storage)
        return self._models[name.removeprefix(DRAFT_PREFIX)].drafter(request, settings)

    def add_texts(self, texts: Iterable[Sequence[int]]) -> None:
        """Draft from texts in all requests without a space that come."""
        for text in texts:
            self._shared().add_text(text, kept=True)

    def texts(self) -> list[tuple[int, ...]]:
        """What was added, and outputs of ended requests without a space; the least recently used
        ones went."""
        return self._shared().texts()

    def _shared(self) -> Trees:
        if self._trees is None:
            self._trees = open_trees(self._limits.vocab_size)
        return self._trees

    def _tree(
        self, triple: LookaheadConfig, request: Request, settings: DrafterSettings
    ) -> TreeDrafter:
        """All sources in one tree where lookahead drafts, else what the named drafters propose."""
        trees = self._shared()
        options, sampling = self._options, request.sampling
        sources = options.sources if settings.uses_lookahead else ("chain",)
        unplaced = len(request.encoder_ids or ())
        tree = trees.tree(request.known_ids, sampling, sources, options.by_noise, unplaced)
        if request.expected_ids:
            tree.add_text("expected", request.expected_ids)
        names = [name for name in settings.drafter if name != "lookahead"]
        window = None
        if "window" in sources and triple.ngram_size > 1:
            window = new_window(triple, request.known_ids, random_from_prompt(sampling.seed))
        return TreeDrafter(
            tree,
            trees,
            settings.max_draft_len(triple),
            sampling.max_output_len,
            window,
            triple.ngram_size,
            drawn=options.cells == "drawn",
            others=[self._make(name, triple, request, settings) for name in names],
        )

    def _kept(self, settings: DrafterSettings) -> NgramStorage:
        """The storage that requests of one order and kind share."""
        shape = (settings.ngram_order, settings.ngram_kind)
        return self._storages.setdefault(shape, NgramStorage(*shape))
