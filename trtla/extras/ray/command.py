"""`--ray` of trtla serve and trtla batch: its flags, the refusals, and what opens the replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtla.cli.serve.served_model import Flags, ServedModelFlags
from trtla.cli.shared.model import is_trtllm, model_at
from trtla.cli.shared.options import options_of
from trtla.console import counted
from trtla.errors import UsageError
from trtla.extras.ray.settings import ReplicaSettings
from trtla.machine import cpu
from trtla.settings.fields import declared, parsed

if TYPE_CHECKING:
    from trtla.extras.ray.engine import Maker
    from trtla.extras.ray.ray_data import Task
    from trtla.llm.llm import LLM


@dataclass(frozen=True, slots=True)
class Replicas:
    """Replicas behind `trtla serve`, or for the lines of `trtla batch`."""

    settings: ReplicaSettings
    options = options_of(ReplicaSettings, "Replicas")

    @staticmethod
    def taken(params: dict[str, Any]) -> Replicas | None:
        """Take the flags out of the command's parameters; None: they ask for no replicas."""
        names = [item.flag for item in declared(ReplicaSettings).values()]
        settings = parsed(ReplicaSettings, {name: params.pop(name) for name in names})
        if not settings.ray:
            return None
        from trtla.extras.ray.cluster import check_ray

        check_ray()
        return Replicas(settings)

    @property
    def text(self) -> str:
        """Their number, as it stands before the description of one."""
        least, most = self.settings.range
        number = counted(least, "replica") if least == most else f"{least} to {most} replicas"
        return f"{number} of "

    def opener(
        self, flags: Flags, open_model: Callable[[Flags], LLM], log: Callable[[str], None]
    ) -> Callable[[], Maker]:
        """Connect to Ray; return the function that opens replicas for the server."""
        each = self._each(flags)
        from trtla.extras.ray.cluster import connect
        from trtla.extras.ray.engine import Maker, ReplicaEngine

        pool, model = connect(self.settings, each), model_at(flags.engine_dir)

        def opened() -> Maker:
            maker, options = Maker(model, flags.options), flags.options
            maker.force_greedy = flags.force_greedy
            handle = maker.deploy(pool, partial(open_model, each), options.max_batch_size)
            maker.executor = ReplicaEngine(handle, log)
            return maker

        return opened

    def check(self, flags: ServedModelFlags) -> None:
        """Refuse flags that replicas cannot serve."""
        self._each(flags)

    @contextmanager
    def results(
        self,
        note: Callable[[str], None],
        flags: Flags,
        open_model: Callable[[Flags], LLM],
        tasks: Iterable[Task],
        share: Any,
    ) -> Iterator[Iterator[Any]]:
        """The results of tasks from replicas, each as `share.results` returns them."""
        from trtla.extras.ray.cluster import connect
        from trtla.extras.ray.ray_data import ray_results

        each = self._each(flags)
        size = model_at(flags.engine_dir).open(None).batch_size(flags.options.max_batch_size)
        together = max(1, 2 * size // share.most_rows)  # the next tasks wait in the replica
        pool = connect(self.settings, each)
        note(f"note: runs on {self.text}{counted(pool.threads, 'thread')}")
        yield ray_results(tasks, share.results, partial(open_model, each), pool, together)

    def _each(self, flags: Flags) -> Flags:
        """Return the flags for a replica: its share of the threads, absolute paths."""
        if is_trtllm(flags.engine_dir):
            raise UsageError(
                f"{flags.engine_dir} is a TensorRT-LLM engine, which --ray cannot replicate",
                "start one server for each GPU, or build with --backend torch",
            )
        if custom := flags.options.drafter.custom:
            raise UsageError(
                f"the drafter {custom[0]} is code of this process, which replicas do not have",
                "omit --ray, or use another --drafter",
            )
        if flags.save_corpus is not None:
            raise UsageError(
                "--save-corpus needs one process: each replica learns texts of its own",
                "omit --ray or --save-corpus",
            )

        def absolute(path: str | Path) -> str:  # names on the hub stay
            return str(Path(path).resolve() if Path(path).exists() else path)

        shared = flags.options
        options = replace(
            shared,
            threads=shared.threads or max(1, cpu().cores // self.settings.range[1]),
            tokenizer_dir=shared.tokenizer_dir and absolute(shared.tokenizer_dir),
            corpus=[absolute(path) for path in shared.corpus],
        )
        return replace(flags, engine_dir=absolute(flags.engine_dir), options=options)
