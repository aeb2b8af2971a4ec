"""transformers, in bf16 on the CPU: weights are dequantized before they are timed.

It is timed if ``torch`` and ``transformers`` are installed in ``.venv-bench``; ``scripts/bench``
does not install them (1 GB).
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from subquant.layouts import QuantizedTensor
from subquant.models.source import config_of, is_checkpoint, open_model

from . import Array, Case, Prepared, Unsupported

HAS_LANGUAGE_MODELS = True


def _load() -> tuple[Any, Any]:
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            raise Unsupported(f"{name} is not installed in .venv-bench")
    import torch  # type: ignore[import-not-found]
    import transformers  # type: ignore[import-not-found]

    return torch, transformers


_torch, _transformers = _load()


def describe() -> dict[str, str]:
    """Return the name and the version."""
    return {"name": "transformers, bf16", "version": _transformers.__version__}


class LanguageModel:
    """Timed evaluation of the tokens after a prompt, as in the peer ``llama``."""

    def __init__(self, case: Case, tokens: Array, threads: int) -> None:
        _torch.set_num_threads(threads)
        self._model = _loaded(Path(case["file"]))
        self._timed = _torch.tensor(tokens[None, case["prompt"] :].astype("int64"))
        self._prompt_length = case["prompt"]
        self._cache = _transformers.DynamicCache()
        self._result: Any = None
        if self._prompt_length:
            self._read(_torch.tensor(tokens[None, : self._prompt_length].astype("int64")))
        self.notes: dict[str, Any] = {}

    def _read(self, tokens: Any) -> Any:
        with _torch.inference_mode():
            result = self._model(
                input_ids=tokens, past_key_values=self._cache, use_cache=True, logits_to_keep=1
            )
        return result.logits[0, -1]

    def call(self, copy: int) -> None:
        """See `Prepared`."""
        if not self._prompt_length:
            self._cache = _transformers.DynamicCache()
        elif self._cache.get_seq_length() > self._prompt_length:
            self._cache.crop(-len(self._timed[0]))  # the tokens of the last call
        self._result = self._read(self._timed)

    def result(self) -> Array:
        """See `Prepared`."""
        result: Array = self._result.float().numpy()
        return result


def _loaded(folder: Path) -> Any:
    """Return the model of a checkpoint with dequantized weights in bf16.

    Raises:
        Unsupported: the file is no checkpoint.
    """
    source = open_model(folder)
    if not is_checkpoint(source.properties):
        raise Unsupported("it reads checkpoints")
    config = config_of(source.properties)
    config.pop("quantization_config", None)
    weights = {
        tensor.name: _torch.from_numpy(
            tensor.unpack().dequant() if isinstance(tensor, QuantizedTensor)
            else tensor.array.astype("float32")
        ).to(_torch.bfloat16)
        for tensor in source.tensors.values()
    }  # fmt: skip
    settings = _transformers.AutoConfig.for_model(**config)
    model = _transformers.AutoModelForCausalLM.from_config(settings, dtype=_torch.bfloat16)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise Unsupported(f"weights differ from the architecture's: {[*missing, *unexpected]}")
    model.tie_weights()
    return model.eval()


def prepare(case: Case, arrays: dict[str, Array], threads: int, copies: int) -> Prepared:
    """Prepare a case: see `benchmarks.peers`.

    Raises:
        Unsupported: the case is no language model of a checkpoint.
    """
    if case["kind"] != "language model":
        raise Unsupported("it has no such operation")
    return LanguageModel(case, arrays["tokens"], threads)
