"""Loading of language models: compiled programs with prepacked weights, both cached.

The executable of a model and its parameter archive are one entry of the cache
(`subquant.compiler.cache`). The key is a hash of the file, the sizes, the options, the versions and
the code. A cached model is loaded without writing or prepacking anything. A loaded model pins its
archive, so that the cache does not evict it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..compiler.cache import Cache, CompileResult, default_cache, description
from ..compiler.compile_options import CompileOptions
from ..compiler.keys import Key, key_of_source
from ..compiler.store_files import PinnedBlob
from ..core.files import write_atomically
from ..core.option_fields import KvCache, ModelActivations
from ..errors import InputError, Place, SubquantError, UnsupportedError, UsageError
from ..isolation.client import ChildEnded, call, close_idle_children
from ..layouts import QuantizedTensor
from ..numerics.cache_formats import check_head_size
from ..numerics.element_types import Array
from ..runtime import Device, Executable
from .chat import ChatTemplate, Message
from .drafts import DraftedSession
from .generation import Generation
from .interface import MAX_CONTEXT, SCOPE, Shape, Steps
from .prompt_cache import PromptCache
from .sampling import Sampling
from .session import Session, SessionBatch
from .source import VOCABULARY_PROPERTIES, ModelSource, open_model
from .step_check import check_batch, check_verify
from .tokenizer import AnyTokenizer
from .tokenizer_cache import TokenizerCache

__all__ = ["DEFAULT_CONTEXT", "Model", "Progress", "default_cache", "emit", "load"]

Progress = Callable[[str], None]
"""A function that is called with a line about each step."""

DEFAULT_CONTEXT = 2048
"""Tokens of context, if the model has more; more take key-value cache in proportion."""


class Model:
    """A model that `load` made, with the properties of its file by GGUF's keys."""

    def __init__(self, source: ModelSource, shape: Shape, tokenizers: TokenizerCache) -> None:
        self.configuration = source.configuration
        self._source = source
        self._tokenizers = tokenizers
        self.place = Place(os.fspath(source.path))
        self.shape = shape
        self._executable: Executable | None = None  # until `load` returns
        self._archive: PinnedBlob | None = None
        self._key = ""

    @property
    def context(self) -> int:
        """The maximum number of tokens of a session."""
        return self.shape.context

    @property
    def kv_cache(self) -> KvCache:
        """The storage of keys and values in a session's cache."""
        return self.shape.kv_cache

    @property
    def cache_bytes_per_token(self) -> int:
        """The memory that a token takes in a session's cache: its keys and values of all blocks."""
        return self.shape.cache_bytes_per_token(self.configuration)

    @property
    def properties(self) -> dict[str, Any]:
        """The properties of the file, by GGUF's keys; ``hparams`` is a ``config.json``.

        `tokenizer` has the vocabulary: the properties have none of its lists and files.
        """
        properties = self._source.properties
        return {name: properties[name] for name in properties.keys() - VOCABULARY_PROPERTIES}

    @functools.cached_property
    def tokenizer(self) -> AnyTokenizer:
        """The tokenizer; errors as `Tokenizer.from_properties`, or as the checkpoint's class."""
        try:
            cached = self._tokenizers.find()
            if cached is not None:
                return cached
            tokenizer = self._source.tokenizer()
            self._tokenizers.keep(tokenizer)
            return tokenizer
        except SubquantError as error:
            raise error.located(self.place) from None

    @functools.cached_property
    def chat(self) -> ChatTemplate:
        """The chat template of the model; errors as `ChatTemplate`."""
        try:
            return self._source.chat(self.tokenizer)
        except SubquantError as error:
            raise error.located(self.place) from None

    def encode(self, prompt: str | Sequence[Message]) -> list[int]:
        """Return the tokens of a text, in which names of control tokens mean these, or of messages.

        Raises:
            UsageError: there are none, or more than the context has room for.
            SubquantError: as `Tokenizer.encode` and `ChatTemplate`.
        """
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt)
        elif all(isinstance(message, Mapping) for message in prompt):
            tokens = self.chat.encode(prompt)
        else:
            raise UsageError(
                "expected a text, or messages such as {'role': 'user', 'content': 'Hello'}; "
                "several texts are prompts of a TextBatch"
            )
        if not tokens:
            raise UsageError("the prompt has no tokens; expected a text")
        if len(tokens) > self.context:
            raise UsageError(
                f"the {len(tokens):,} tokens of the prompt do not fit into the context of "
                f"{self.context:,}; give a shorter prompt, or a greater context"
            )
        return tokens

    def generate(
        self,
        prompt: str | Sequence[Message],
        *,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
    ) -> Generation:
        """Continue a text, in a session of its own, with drafts if it was loaded for them.

        Args:
            prompt: a text, or messages of a conversation, whose answer is written; as `encode`.
            max_tokens: how many at most; None for as many as the context has room for.

        Raises:
            SubquantError: as `Generation` and `encode`; and while it is iterated over, as
                `Session.prompt`.
        """
        tokens = self.encode(prompt)
        return Generation(
            self.text_session(), self.tokenizer, tokens, sampling=sampling, max_tokens=max_tokens
        )

    def session_batch(self) -> SessionBatch:
        """Return a reader of several sessions at once, of a model with the steps ``batch``."""
        return SessionBatch(self.session)

    def text_session(self, prompt_cache: PromptCache | None = None) -> Session | DraftedSession:
        """Start as `session`; with drafts if the model was loaded with the steps ``draft``."""
        session = self.session(prompt_cache)
        return DraftedSession(session) if self.shape.steps == "draft" else session

    def session(self, prompt_cache: PromptCache | None = None) -> Session:
        """Start with no tokens; sessions share the weights."""
        assert self._executable is not None
        return Session(self._executable, self.configuration, self.shape, prompt_cache)

    def prompt_cache(
        self, path: str | os.PathLike[str], notify: Progress | None = None
    ) -> PromptCache:
        """Return a file of keys and values of prompts, for `session` or `text_session`.

        `notify` is called with a line if the file is of another model, for example.
        """
        return PromptCache(path, self._key, self.configuration, self.shape, notify)

    def logits(self, tokens: list[int]) -> Array:
        """Return the logits after each token, ``[T, vocabulary]``: see `Session.all_logits`."""
        return self.session().all_logits(tokens)


def load(
    path: str | os.PathLike[str],
    *,
    device: Device | str = "llvm-cpu",
    threads: int | None = None,
    context: int | None = None,
    activations: ModelActivations | None = None,
    kv_cache: KvCache = "f16",
    steps: Steps = "single",
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    check: Callable[[Model], object] | None = None,
) -> Model:
    """Load a model, and compile it at the first time.

    Args:
        path: a ``.gguf`` file, an archive that ``subquant import`` made of one, or a checkpoint
            of Hugging Face: its folder, with ``config.json``, safetensors and ``tokenizer.json``.
        context: the maximum number of tokens of a session; by default the model's, at most
            `DEFAULT_CONTEXT`.
        activations: ``checkpoint`` rounds the inputs of layers as the checkpoint asks for; with
            ``int8`` and ``float`` no layer does, and these are the activations of blockwise GEMMs.
            By default ``checkpoint`` if it asks for any, else ``int8``, which is the fastest.
        kv_cache: the storage of keys and values in the cache of a session.
        steps: ``draft`` for `Session.verify`, ``batch`` for `SessionBatch`; each is a program of
            its own, whose tokens have the bits of single ones.
        cache: the folder of the cache; by default `subquant.compiler.cache.default_cache`.
        check: called with the model before it is compiled, when it has a tokenizer and no sessions;
            its exceptions end the call.

    Raises:
        UnsupportedError: the architecture, the type of a tensor, or the size of heads in the cache
            is not supported.
        InputError: the file cannot be read, or is not valid; or the cache cannot be written.
        SubquantError: the compilation failed, or there is no device.
    """
    notify = progress or (lambda step: None)
    where = Device.of(device, threads)
    folder = Path(cache) if cache is not None else default_cache()
    cache_of_models = Cache(folder, notify)
    tokenizers = TokenizerCache(cache_of_models, path)
    source = open_model(path, lists=tokenizers.lists)
    for remark in source.remarks:
        notify(remark)
    shape = _shape(source, context, kv_cache, activations, steps)
    for text, count in source.activations().items() if not shape.rounds_activations else ():
        notify(
            f"the inputs of {count} layers are not rounded to {text}, as the checkpoint asks for; "
            f"activations are {activations}"
        )
    model = Model(source, shape, tokenizers)
    if check is not None:
        check(model)
    is_int8 = activations in (None, "int8") and not shape.rounds_activations
    options = CompileOptions(
        target="vulkan" if where.is_vulkan else "llvm-cpu",
        vulkan_target=where.vulkan_target if where.is_vulkan else "generic",
        activations="int8" if is_int8 else "float",
    )
    result = _cached_or_compiled(Path(path), model, where, options, cache_of_models, notify)
    archive = result.parameters
    assert archive is not None
    notify("load")
    source.release_pages()  # the executable reads the archive in place of the file
    model._executable = Executable(result.executable, where, {SCOPE: archive.path})
    model._archive = archive
    return model


def _cached_or_compiled(
    path: Path,
    model: Model,
    device: Device,
    options: CompileOptions,
    cache: Cache,
    notify: Progress,
) -> CompileResult:
    """Return the executable and the archive of a model from the cache, compiled if missing."""
    shape = model.shape
    key = key_of_source(
        f"a language model, {shape}".encode(),
        options,
        parameters=True,
        weights={SCOPE: path},
        memo=cache,
    )
    model._key = key.text
    with cache.found_or_reserved(key.text, notify) as result:
        if result is None:
            _compile(path, model, device, options, cache, key, notify)
            close_idle_children()  # MLIR's memory stays theirs while a model runs
            result = cache.find(key.text)
    if result is None:
        raise InputError(
            f"the compiled model of '{path}' was evicted from '{cache.folder}'; set SUBQUANT_CACHE "
            "to another folder, or raise SUBQUANT_CACHE_SIZE"
        )
    return result


def _compile(
    path: Path,
    model: Model,
    device: Device,
    options: CompileOptions,
    cache: Cache,
    key: Key,
    notify: Progress,
) -> None:
    from ..compiler.compilation import compile_to_bytes

    shape = model.shape
    about = description("language model", os.fspath(path), options)
    about["context"] = shape.context
    about["kv_cache"] = shape.kv_cache
    try:
        with cache.temporary() as archive:
            executable = compile_to_bytes(
                _program(path, shape, notify, is_vulkan=options.target == "vulkan"),
                options,
                cache="",
                weights={SCOPE: path},
                parameters=archive,
                progress=notify,
            )
            if not key.is_valid:
                raise InputError(f"'{path}' was written to while it was compiled; try again")
            if shape.steps != "single":
                notify("compare with steps of one token")
                _check_steps(model, Executable(executable, device, {SCOPE: archive}))
            cache.add(key.text, CompileResult(executable), about, parameters=archive, move=True)
    except OSError as error:
        raise InputError(f"cannot write '{cache.folder}': {error.strerror or error}") from None


def _check_steps(model: Model, executable: Executable) -> None:
    """Refuse a program whose calls of several tokens do not have the bits of single tokens."""

    def new_session() -> Session:
        return Session(executable, model.configuration, model.shape)

    try:
        if model.shape.steps == "draft":
            check_verify(new_session(), model.configuration.window)
        else:
            check_batch(new_session)
    except UnsupportedError as error:
        raise error.located(model.place) from None


def emit(
    path: str | os.PathLike[str],
    module: str | os.PathLike[str],
    archive: str | os.PathLike[str],
    *,
    context: int | None = None,
    kv_cache: KvCache = "f16",
    progress: Progress | None = None,
) -> None:
    """Write a model as an ``.mlir`` program and its ``.irpa`` parameters, of the scope ``model``.

    Raises:
        SubquantError: as `load`.
    """
    source = open_model(path)
    shape = _shape(source, context, kv_cache)
    notify = progress or (lambda step: None)
    for remark in source.remarks:
        notify(remark)
    from .module import write_module

    # Any target may compile it, and without a kernel a group copies the weight of its expert.
    text = str(write_module(source.configuration.without_float_groups(), source.tensors, shape))
    source.parameters().save(
        archive,
        on_tensor=lambda number, count, tensor: notify(
            f"import {number + 1} of {count}: {tensor.name}"
        ),
    )
    try:
        write_atomically(Path(module), text.encode())
    except OSError as error:
        raise InputError(f"cannot write '{os.fspath(module)}': {error.strerror or error}") from None


def _program(
    path: str | os.PathLike[str], shape: Shape, notify: Progress, *, is_vulkan: bool
) -> bytes:
    """The program as bytecode."""
    arguments = {
        "path": os.fspath(path),
        "context": shape.context,
        "is_vulkan": is_vulkan,
        "kv_cache": shape.kv_cache,
        "rounds_activations": shape.rounds_activations,
        "steps": shape.steps,
    }
    try:
        _, [program] = call(
            "subquant.models.module:program", arguments, steps=lambda step, *_: notify(step)
        )
    except ChildEnded as ended:
        raise InputError(
            f"the program of '{os.fspath(path)}' could not be written: the process that did it "
            f"ended ({ended.cause})"
        ) from None
    return program


def _check_activation_groups(source: ModelSource) -> None:
    """Refuse inputs that are rounded in groups that do not divide them."""
    for tensor in source.tensors.values():
        settings = tensor.activations if isinstance(tensor, QuantizedTensor) else None
        size = None if settings is None else settings.group_size
        if size is not None and tensor.shape[-1] % size:
            raise UnsupportedError(
                f"the layer of '{tensor.name}' has {tensor.shape[-1]} inputs, which are rounded in "
                f"groups of {size}, expected a multiple; use --activations float",
                Place(os.fspath(source.path)),
            )


def _shape(
    source: ModelSource,
    context: int | None,
    kv_cache: KvCache,
    activations: ModelActivations | None = None,
    steps: Steps = "single",
) -> Shape:
    """Return the sizes of a program; errors as `load`."""
    configuration, rounds = source.configuration, bool(source.activations())
    check_head_size(kv_cache, configuration.head_size)
    if activations == "checkpoint" and not rounds:
        raise UsageError(
            "the model says nothing of activations; expected int8 or float, not checkpoint"
        )
    rounds = rounds and activations in (None, "checkpoint")
    if rounds:
        _check_activation_groups(source)
    if context is None:
        context = min(configuration.context, DEFAULT_CONTEXT)
        return Shape.of_context(context, kv_cache, rounds, steps)
    limit = min(configuration.context, MAX_CONTEXT)
    if not 1 <= context <= limit:
        reason = ", which the model was made for" if limit == configuration.context else ""
        raise UsageError(f"the context is {context:,}, expected 1 to {limit:,}{reason}")
    return Shape.of_context(context, kv_cache, rounds, steps)
