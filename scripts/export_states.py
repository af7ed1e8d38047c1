"""Writes what a Llama's answers look like inside, for SpecForge's offline training of a head.

    python scripts/export_states.py --model MODEL --prompts prompts.jsonl --output-dir states

trtla answers the prompts; each answer becomes one file `rows_N/data_M.ckpt`, a dictionary of
`input_ids` [T], `loss_mask` [T] (1 on the answer), `aux_hidden_state` [1, T, 3 x hidden] (the
states before layers 2, L/2 and L - 3) and `hidden_state` [1, T, hidden] (behind the last norm).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from eagle_head import Batch
from head_texts import Text, answers, chat_prompts, rows
from torch import Tensor
from train_tiny_head import Target

from trtla.llm.llm import LLM

FOLDER_FILES = 2000
"""Files of a folder, as SpecForge writes them."""


def sample(text: Text, read: Batch) -> dict[str, Tensor]:
    """The dictionary of a file."""
    mask = torch.zeros(len(text.ids), dtype=torch.long)
    mask[text.read :] = 1
    return {
        "input_ids": read.ids[0],
        "loss_mask": mask,
        "aux_hidden_state": read.taps,
        "hidden_state": read.last,
    }


def write(target: Target, texts: Sequence[Text], folder: Path) -> None:
    """Write a file for each text; a file that is there is whole."""
    for n, text in enumerate(texts):
        start = n - n % FOLDER_FILES
        path = folder / f"rows_{start}-{start + FOLDER_FILES}" / f"data_{n}.ckpt"
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".new")
        torch.save(sample(text, target.read(rows([text]))), part)
        part.replace(path)


def main() -> None:
    """Answer the prompts, then run the model over the answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a Llama's Hugging Face folder")
    parser.add_argument("--prompts", type=Path, nargs="+", required=True, help=".jsonl files")
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--max-output-len", type=int, default=512)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--boundaries", type=int, nargs="+", help="layers before each state")
    args = parser.parse_args()
    with LLM(args.model) as llm:
        prompts = [ids for path in args.prompts for ids in chat_prompts(args.model, path)]
        texts = answers(llm, prompts, args.max_output_len, [args.temperature], args.seed)
    target = Target(args.model)
    target.boundaries = args.boundaries or target.boundaries
    write(target, texts, args.output_dir)
    print(f"{len(texts)} files in {args.output_dir}")


if __name__ == "__main__":
    main()
