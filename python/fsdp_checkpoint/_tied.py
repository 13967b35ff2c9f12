# SPDX-License-Identifier: Apache-2.0
"""Tied names of Hugging Face directories: safetensors files lack the weight of an output layer that is the embedding,
and only config.json says so."""

import json
import os
from typing import Any, Collection, Dict, List, Tuple

_HEAD = "model/lm_head.weight"
_EMBEDDINGS = (".wte.weight", ".embed_tokens.weight", ".word_embeddings.weight")
_WITH_HEAD = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_MOST_BYTES = 1 << 20


def _why_tied(config: Any) -> str:
    """Why the model of config.json has an output layer that is its embedding; "" if it has none."""
    if not isinstance(config, dict):
        return ""
    of_text = config.get("text_config")
    says = config.get("tie_word_embeddings", of_text.get("tie_word_embeddings") if isinstance(of_text, dict) else None)
    classes = config.get("architectures")
    heads = [str(name) for name in classes if str(name).endswith(_WITH_HEAD)] if isinstance(classes, list) else []
    if says is True and (heads or not classes):
        return "config.json ties it"
    # transformers leaves out what is the default of a class, and this class needs the weight.
    return f"config.json names {heads[0]}, which has one" if says is None and heads else ""


def tied_names(directory: str, names: Collection[str]) -> Tuple[Dict[str, str], List[str]]:
    """The names that `names`, of the tensors of a Hugging Face directory, lack although its model has them: {tied name:
    name}. And a sentence for each."""
    path = os.path.join(directory, "config.json")
    if _HEAD in names or not os.path.isfile(path):
        return {}, []
    try:
        with open(path, encoding="utf-8") as file:
            config = json.loads(file.read(_MOST_BYTES))
    except (OSError, RecursionError, ValueError) as error:
        return {}, [f"{path} is not read, so tied names are not known: {error}"]
    embeddings = [name for name in names if name.endswith(_EMBEDDINGS)]
    why = _why_tied(config)
    if not why or not embeddings:
        return {}, []
    if len(embeddings) > 1:
        return {}, [f"{_HEAD} is in no file, but {why}; it may be any of {', '.join(sorted(embeddings))}"]
    return {_HEAD: embeddings[0]}, [f"{_HEAD}, which is in no file, is {embeddings[0]}: {why}"]
