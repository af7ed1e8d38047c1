"""From `DrafterSettings` to drafters: the classes behind the names, and the state requests share.

Draft models, n-grams kept across requests, candidate trees and the lookahead pool live here as long
as the executor.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trtla.runtime.draft import Drafter, NoDrafter
from trtla.runtime.drafters.custom import CustomDrafters, OneCustomDrafter
from trtla.runtime.drafters.lookahead import (
    LookaheadDrafter,
    lookahead_drafter,
    new_window,
)
from trtla.runtime.drafters.lookup import NgramDrafter, NgramStorage, PromptLookupDrafter
from trtla.runtime.drafters.tree import TreeDrafter
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models.cpu.native_code import NotCompiled, note_slower
from trtla.runtime.request import DrafterFactory, Request
from trtla.runtime.tree.library import SharedTrees, Tree
from trtla.settings.drafting import DRAFT_PREFIX, DrafterSettings, DraftOptions
from trtla.settings.lookahead import LookaheadConfig

if TYPE_CHECKING:
    from trtla.runtime.drafters.draft_model import DraftModelDrafters
    from trtla.runtime.drafters.head import HeadDrafters
    from trtla.settings.drafting import NgramKind

_OPTIONS = DraftOptions()
_MOST_STORAGES = 4
"""Kinds of n-grams that are kept between requests; the oldest one begins anew."""
_MOST_SPACES = 16
"""Spaces whose texts are kept to draft from; the least recently used ones are dropped."""


class Drafters(DrafterFactory):
    """Makes the drafters of an executor's requests.

    Args:
        limits: the executor's.
        options: how lookahead and trees draft.
        models: draft models by the PATH of `draft:PATH`.
        heads: trained heads by the PATH of `head:PATH`.
        custom: makes the user's own drafters, by their names.
    """

    def __init__(
        self,
        limits: ExecutorLimits,
        options: DraftOptions = _OPTIONS,
        models: Mapping[str, DraftModelDrafters] | None = None,
        heads: Mapping[str, HeadDrafters] | None = None,
        custom: CustomDrafters | None = None,
    ) -> None:
        self._limits, self._options, self._models = limits, options, models or {}
        self._heads, self._custom = heads or {}, custom or {}
        self._storages: dict[tuple[int, NgramKind], NgramStorage] = {}
        self._trees: SharedTrees | None = None
        self._spaces: OrderedDict[int, Drafters] = OrderedDict()

    def __call__(self, lookahead: LookaheadConfig, request: Request) -> Drafter:
        if request.private:  # its state is shared with no request
            return self.fresh()(lookahead, replace(request, private=False, space=0))
        if request.space:
            return self._of(request.space)(lookahead, replace(request, space=0))
        settings = self._limits.drafter_of(request)
        if lookahead.is_autoregressive and not request.adaptive:
            settings = settings.without_lookahead()
        names = settings.drafter
        several = len(names) > 1 or settings.head is not None
        if several or (request.adaptive and names != ("none",)):
            return self._drafts_of_all(lookahead, request, settings)
        return self._make(names[0], lookahead, request, settings)

    def reset(self) -> None:
        for model in self._models.values():
            model.reset()
        self._storages, self._trees, self._spaces = {}, None, OrderedDict()

    def fresh(self, options: DraftOptions | None = None) -> Drafters:
        sources = self._models, self._heads, self._custom
        return Drafters(self._limits, options or self._options, *sources)

    def _of(self, space: int) -> Drafters:
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
            return _prompt_lookup(request, settings.gamma)
        if name == "ngram":
            storage = None if settings.reset_in_between else self._kept(settings)
            return NgramDrafter(settings, request, self._limits.vocab_size, storage)
        if name in self._custom:
            make, size = self._custom[name], self._limits.vocab_size
            return OneCustomDrafter(name, make, request, settings.gamma, size)
        return self._models[name.removeprefix(DRAFT_PREFIX)].drafter(request, settings)

    def _kept(self, settings: DrafterSettings) -> NgramStorage:
        shape = (settings.ngram_order, settings.ngram_kind)
        if shape not in self._storages and len(self._storages) == _MOST_STORAGES:
            del self._storages[next(iter(self._storages))]
        return self._storages.setdefault(shape, NgramStorage(*shape))

    def add_texts(self, texts: Iterable[Sequence[int]]) -> None:
        for text in texts:
            shared = self._shared()
            if shared is not None:
                shared.add_text(text, kept=True)

    def texts(self) -> list[tuple[int, ...]]:
        """Return added texts, and outputs of ended requests without a space, as far as they are
        kept."""
        shared = self._shared()
        return shared.texts() if shared else []

    def _shared(self) -> SharedTrees | None:
        """Return the trees' shared state; None, with a note, without a library for this
        processor."""
        if self._trees is None:
            try:
                self._trees = SharedTrees(self._limits.vocab_size)
            except NotCompiled as error:
                note_slower(error, "auto drafts by prompt lookup alone")
        return self._trees

    def _drafts_of_all(
        self, triple: LookaheadConfig, request: Request, settings: DrafterSettings
    ) -> Drafter:
        """Combine all sources in one candidate tree; without a library only one of them drafts."""
        options, most = self._options, settings.max_draft_len(triple)
        drafts_itself = ("lookahead", settings.head_name)
        names = [name for name in settings.drafter if name not in drafts_itself]
        shared = self._shared()
        # A request with a triple of its own uses the drafters that it names, and no others.
        every = settings.uses_lookahead and request.adaptive
        if shared is None:
            if settings.uses_lookahead and not every:
                return lookahead_drafter(triple, request, options)
            if names:
                return self._make(names[0], triple, request, settings)
            return _prompt_lookup(request, min(settings.gamma, most))
        sources = options.sources if every else ("chain", "head")
        heads = self._heads.get(settings.head or "") if "head" in sources else None
        tree = self._tree(shared, request, sources)
        window, fixed = None, None
        if every and "window" in sources and triple.ngram_size > 1:
            window = new_window(triple, request.known_ids, request.sampling.seed)
        elif not every and settings.uses_lookahead:
            drafter = lookahead_drafter(triple, request, options)
            fixed = drafter if isinstance(drafter, LookaheadDrafter) else None
        return TreeDrafter(
            tree,
            shared,
            most,
            request.sampling.max_output_len,
            window,
            fixed=fixed,
            drawn=options.cells == "drawn",
            others=[self._make(name, triple, request, settings) for name in names],
            chain_len=settings.most_tokens,
            head=None if heads is None else heads.drafter(),
        )

    def _tree(self, shared: SharedTrees, request: Request, sources: Sequence[str]) -> Tree:
        by_noise, unplaced = self._options.by_noise, len(request.encoder_ids or ())
        tree = shared.tree(request.known_ids, request.sampling, sources, by_noise, unplaced)
        if request.expected_ids:
            tree.add_text("expected", request.expected_ids)
        return tree


def _prompt_lookup(request: Request, gamma: int) -> PromptLookupDrafter:
    return PromptLookupDrafter(gamma, request.known_ids, request.sampling.max_output_len)
