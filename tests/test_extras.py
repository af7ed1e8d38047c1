"""Extras are folders that can be deleted; what they import of the core is its public interface."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import trtla
from trtla.cli.commands import COMMANDS, extension

PACKAGE = Path(trtla.__file__).parent
ROOT = PACKAGE.parent
EXTRAS = sorted(path for path in (PACKAGE / "extras").iterdir() if (path / "__init__.py").exists())
NUMBER = 7
"""Extras of the whole tree: one that is deleted leaves names in the list that nobody takes."""
FINDS_EXTRAS = PACKAGE / "cli" / "commands.py"

INTERFACE = {
    "api.answers": "dumps Json Labels Writer",
    "api.errors": "ApiError refused",
    "api.generation": "answers_to check_name Generation",
    "api.harmony": "HarmonySplitter SIGNS speaks_harmony Transcript",
    "api.protocol": "ChatBody CompletionBody",
    "api.reading": "check_body",
    "api.responses.answer": "ResponseWriter response_answers",
    "api.responses.body": "ResponseBody",
    "build.engine": "choose_backend describe_build",
    "cli.commands": "extension",
    "cli.serve.served_model": (
        "checked Flags open_served served_draft_flags served_model_flags served_name "
        "ServedModelFlags"
    ),
    "cli.shared.command": "Command",
    "cli.shared.flags": "flags_as",
    "cli.shared.model": (
        "block_reuse check_custom check_drafters check_heads check_length check_model "
        "check_triples check_vocabulary CorpusFlags is_trtllm loading model_at ModelFlags "
        "named_drafters note_loading note_without_drafts open_llm sample_model save_corpus"
    ),
    "cli.shared.options": (
        "chat_flags color_flag corpus_flag corpus_flags Decorator draft_flags draft_place_flags "
        "drafter_flags DRAFTERS engine_flags flag flags_of grammar_flags json_flag length_flag "
        "MODEL model_flag opening_flags options_of PATH place_flags processor_flag PROCESSORS "
        "sampling_flags setting several stack stop_flags switch template_flags tokenizer_flag "
        "trtllm_flags"
    ),
    "cli.shared.outputs": "check_folder check_new_file",
    "cli.shared.params": "Given ModelArgument",
    "cli.shared.presets": "flag_defaults",
    "cli.shared.templates": "check_template check_texts",
    "cli.shared.values": "DEVICE ListType LOOKAHEAD TEXT TOKENS UnitType",
    "console": "cell command_line Console counted duration Progress silent size Stages",
    "data.prompt_sets": "batches fit Ids load_sets PromptSet Question",
    "data.prompts": "gather",
    "errors": (
        "as_trtla_error CheckFailed closest did_you_mean first_line install_hint is_installed "
        "named needed ReplicasLost require sentence TORCH TrtlaError UsageError"
    ),
    "files": (
        "ASSETS json_text JsonError parse_json parse_texts read_json read_text read_yaml "
        "user_cache write_whole written"
    ),
    "formats.chat_templates": "stored_template",
    "formats.checkpoint": "check_config rank_problems",
    "formats.config": "BLOCK_SIZES CheckpointConfig DTYPE_BYTES DTYPES INT4",
    "formats.engine": "check_is_engine check_manifest Engine model_digest",
    "formats.engine_limits": "BuildSettings compiled_problems longest_text",
    "formats.folder": "tokenizer_dir",
    "formats.gguf.folder": "model_name weight_file",
    "formats.gguf.header": "Header is_gguf MADE_OF read_header shards",
    "formats.gguf.weights": "PLAIN",
    "formats.heads.beside": "head_beside",
    "formats.heads.head": "EagleConfig Head MedusaConfig",
    "formats.heads.reading": "drafter_at parameters read_head",
    "formats.heads.stored": "open_folder",
    "formats.hf": "model_problems stored_parameters",
    "formats.hub": "hub_folder",
    "formats.model": "Model",
    "formats.model_folder": "ModelFolder",
    "formats.plan": "stored_plan",
    "formats.quantised_folder": "quantization_name",
    "formats.shapes": "LM_HEAD hf_shapes",
    "formats.special_tokens": "end_tokens",
    "formats.support": "expert_numbers kv_bytes_per_token plain_bytes",
    "interrupts": "INTERRUPTS",
    "llm.answer": "Completion",
    "llm.async_engine": "in_thread",
    "llm.decoder": "Event Receive refusal ReplicaCounts",
    "llm.llm": "Chunk LLM Piece Prompt",
    "llm.prompt": "PromptRequest RequestMaker",
    "llm.reading": "log_template_note reading_notes template_note",
    "llm.text": "Tokenizer",
    "llm.text_stream": "Decode StopStrings",
    "machine": "cpu look Machine process_rank",
    "measuring.arms": "AR Arm ArmRun Decode EngineArm Meter Note Options PeerArm",
    "measuring.encoding": "Encoder prompt_room take_tokenizer",
    "measuring.hardware": "Hardware",
    "measuring.hugging_face": "HuggingFace load_causal",
    "measuring.summaries": "rouge ROUGE",
    "measuring.tables": "ALL_COLUMNS tables USUAL",
    "measuring.turns": "alternate Batch CellRuns measure OnRound rows Score Turn Work",
    "results.documents": "environment Figure Part SCHEMA_VERSION SourceRow Triple",
    "results.metrics": "too_short total",
    "results.rows": "Cell Document Row Shares Summarize",
    "results.run": "result",
    "runtime.auto.fixed": "costs_are_fixed FIXED_COSTS new_policy",
    "runtime.auto.steps": "StepCosts",
    "runtime.costs": "CostTable NodePrices Point rising",
    "runtime.device": "CPU Device resolve_device",
    "runtime.draft": "depths Draft Drafter NO_DRAFT RecordedForward TopRows",
    "runtime.drafters.lookahead": "DraftTree LookaheadDrafter LookaheadWindow new_window",
    "runtime.drafters.tree": "TreeDrafter",
    "runtime.executor": "Executor",
    "runtime.limits": "ExecutorLimits refuse_watch",
    "runtime.loop.scores": "perplexity",
    "runtime.models.cpu.native_code": "FORWARD NotCompiled TREES",
    "runtime.models.cuda_check": "choose_path",
    "runtime.models.load": "model_dtype not_compiled resolve_dtype",
    "runtime.models.mask": "seen_nodes",
    "runtime.request": "DraftRecorder FinishReason Output RecorderWatch Request",
    "runtime.sampling.draw": "draw_at",
    "runtime.sampling.noise": "uniform",
    "runtime.stats": "ExecutorStats RequestStats tokens_per_step",
    "runtime.threads": "num_threads set_threads",
    "runtime.tree.library": "MOST_TOKENS Planner READ SharedTrees Tree",
    "settings.drafting": (
        "check_used DRAFT_PREFIX DrafterSettings DraftOptions HEAD_PREFIX LOOKAHEAD NO_DRAFTER "
        "parse_drafter"
    ),
    "settings.executor": "ENGINE_OPTIONS ExecutorOptions",
    "settings.fields": "check check_text declared flag_name option parsed shown whole",
    "settings.grammar": "Grammar SETTINGS",
    "settings.lookahead": "AUTOREGRESSIVE check_request Lookahead LookaheadConfig triples_for",
    "settings.messages": "ANSWER AS_TEXT Asking check_messages follow_up is_conversation Messages",
    "settings.sampling": (
        "BEYOND DRAWN Filters filters_text parse_processor SamplingParams USUAL_LEN"
    ),
    "trtllm.library": "HOW_TO_INSTALL installed_version known_trouble load require_backend",
    "trtllm.rules": "check_family check_trtllm gpu_capability show",
    "trtllm.start": "check_release_and_gpu",
    "version": "__version__",
}
"""The names that extras take, by module below trtla; a module that is taken is a name too."""
INTERNAL = {
    "formats": "inspect describes what is on disk, down to the plan of tensors and their types",
    "formats.config": "bench and inspect count bytes in the types of weights",
    "llm.async_engine": "ray asks its replicas in a thread",
    "llm.decoder": "ray's engine stands in the place of the executor's thread",
    "llm.reading": "chat and inspect repeat the notes on a template",
    "llm.text_stream": "ray ends texts at stop strings, explain decodes tokens one by one",
    "runtime.auto": "hosts choose the size of drafts as the executor does",
    "runtime.costs": "tune and hosts predict times from the costs of steps",
    "runtime.draft": "explain, chat and hosts read drafts",
    "runtime.drafters": "explain records window and pool, hosts draft with them",
    "runtime.executor": "bench gives an arm its own memory of drafts",
    "runtime.loop.scores": "bench computes perplexities",
    "runtime.models": "bench and inspect name types and paths of arithmetic, explain draws a mask",
    "runtime.sampling": "hosts draw with the seeds of trtla's own sampling",
    "runtime.tree": "hosts hold candidate trees in other libraries' loops",
    "trtllm": "inspect checks an engine against TensorRT-LLM's rules, hosts load the library",
}
"""Why extras take names of inner packages and modules."""
INNER = ("formats", "runtime", "trtllm")
FOR_EVERYBODY = {"runtime.device", "runtime.limits", "runtime.request", "runtime.stats",
                 "runtime.threads"}  # fmt: skip


def taken(file: Path) -> Iterator[tuple[str, str]]:
    """Module and name of each import of a file, and of what it uses of imported modules."""
    tree = ast.parse(file.read_text())
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "trtla":
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                if ROOT.joinpath(*module.split(".")).with_suffix(".py").exists():
                    modules[alias.asname or alias.name] = module
                else:
                    yield str(node.module), alias.name
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        if node.value.id in modules:
            yield modules[node.value.id], node.attr


def interface(extras: Iterable[Path]) -> dict[str, set[str]]:
    """The names of the core that extras take, by module below trtla."""
    names: dict[str, set[str]] = {}
    for extra in extras:
        for file in extra.rglob("*.py"):
            for module, name in taken(file):
                if not module.startswith("trtla.extras."):
                    names.setdefault(module.partition(".")[2], set()).add(name)
    return names


def test_extras_take_the_names_of_the_list() -> None:
    listed = {module: {*names.split()} for module, names in INTERFACE.items()}
    found = interface(EXTRAS)
    more = {module: names - listed.get(module, set()) for module, names in found.items()}
    assert {module: names for module, names in more.items() if names} == {}
    if len(EXTRAS) == NUMBER:
        assert found == listed, "names that nobody takes any more go from the list"
    private = [name for names in found.values() for name in names if re.match("_[^_]", name)]
    assert private == []


def test_names_of_inner_packages_have_a_reason() -> None:
    inner = [module for module in INTERFACE if module.split(".")[0] in INNER]
    without = {module for module in inner if not _reasons(module)}
    assert without == FOR_EVERYBODY & {*INTERFACE}
    assert {reason for module in INTERFACE for reason in _reasons(module)} == {*INTERNAL}


def _reasons(module: str) -> list[str]:
    return [named for named in INTERNAL if f"{module}.".startswith(f"{named}.")]


@pytest.mark.parametrize("extra", EXTRAS, ids=lambda path: path.name)
def test_an_extra_stands_alone(extra: Path) -> None:
    """It imports no other, declares without imports what it adds, and has tests and a page."""
    modules = {module for file in extra.rglob("*.py") for module, _ in taken(file)}
    others = {module for module in modules if re.match(r"trtla\.extras\b", module)}
    assert {module.split(".")[2] for module in others} <= {extra.name}
    statements = ast.parse((extra / "__init__.py").read_text()).body
    imports = [node for node in statements if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert [getattr(node, "module", "") for node in imports] in ([], ["__future__"])
    assert list((ROOT / "tests" / "extras" / extra.name).glob("test_*.py"))
    assert f"\n| `{extra.name}` | " in (ROOT / "CONTRIBUTING.md").read_text()


def test_the_core_names_no_extra() -> None:
    core = [path for path in PACKAGE.rglob("*.py") if PACKAGE / "extras" not in path.parents]
    named = [path for path in core if re.search(r"trtla[./]extras", path.read_text())]
    assert named == [FINDS_EXTRAS]


def test_tests_of_the_core_need_no_extra() -> None:
    tests = ROOT / "tests"
    core = [path for path in tests.rglob("*.py") if tests / "extras" not in path.parents]
    needed = re.compile(r"^\s*(?:from|import) (?:trtla|tests)\.extras", re.MULTILINE)
    assert [path for path in core if needed.search(path.read_text())] == []


def test_what_extras_declare_is_there() -> None:
    assert {"run", "serve", "convert", "build"} <= {*COMMANDS}
    for name in COMMANDS:
        assert COMMANDS[name].name in (name, "inspect-path")
    for command in COMMANDS:
        extended = extension(command)
        assert extended is None or extended.__doc__
