"""Folder of the blocks that a run has quantized: after an interruption the next run goes on.

::

    lock             the run that uses the folder holds a lock on it
    progress.json    key of the run, number of finished blocks, the quantization that was chosen
                     for each layer, digests of the other files
    block-0.irpa     tensors of a block that differ from the model's, and the errors of its layers
    block-1.irpa
    states-2.irpa    hidden states of all chunks of tokens before the next block

``--method auto`` first measures all blocks. Meanwhile ``progress.json`` has the number of measured
blocks and the measured choices of their layers, and ``float-states-2.irpa`` the hidden states of
the float model.

``progress.json`` is written last and whole: a run that is killed loses its current block only. The
key has the model's files, the tokens, the options, and subquant's code, so that no file of another
run is read.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from ..compiler.digests import Digest, digest_of_fields, digest_of_file
from ..compiler.keys import code_digest, weights_files
from ..compiler.store_files import create_with_folder, lock_file
from ..core.files import write_atomically, writing
from ..core.versions import versions_of
from ..errors import InputError, SubquantError, UsageError, counted
from ..layouts import GgmlTensor, InferenceTensor, PlanarQuantizedTensor, PrimitiveTensor
from ..numerics.element_types import Array
from ..weights.quantizing import LayerError, WeightQuantization
from ..weights.theta import Dataset, Theta
from .layer import Calibration
from .outputs import Output, checkpoint_tensor_of
from .texts import CutTexts

_LOCK, _PROGRESS = "lock", "progress.json"
_OWN_FILES = (_PROGRESS, "block-*.irpa", "states-*.irpa", "float-states-*.irpa", ".subquant-*")
"""Patterns of the names of files that a run writes, but the lock."""


def key_of_run(
    source: str | os.PathLike[str],
    texts: CutTexts,
    how: WeightQuantization,
    calibration: Calibration,
    select: str,
    output: Output,
) -> Digest:
    """Return the digest of all that the result of a run depends on, see `calibrated`.

    Raises:
        InputError: a file cannot be read.
    """
    paths = [*weights_files(source), *([calibration.imatrix] if calibration.imatrix else [])]
    fields = {
        "files": [digest_of_file(path) for path in paths],
        "tokens": [[each.tolist() for each in chunks] for chunks in texts],
        "options": [asdict(how), asdict(calibration), select, output],
        "code": code_digest(),
        "versions": versions_of(["numpy", "ml_dtypes"]),
    }
    return digest_of_fields(fields)


@contextlib.contextmanager
def open_finished_blocks(
    folder: str | os.PathLike[str], key: Digest, output: Output = "archive"
) -> Iterator[FinishedBlocks]:
    """Open the folder for a run, or create it; lock it in the block.

    A folder without finished blocks is removed at the end.

    Args:
        key: of the run, see `key_of_run`.
        output: the format that layers are packed for.

    Raises:
        UsageError: the folder is of another run, or a process uses it.
        InputError: a file is damaged, or cannot be written.
    """
    path = Path(folder)
    with writing(path / _LOCK):
        handle = create_with_folder(path / _LOCK, os.O_RDWR | os.O_CREAT)
    try:
        try:
            lock_file(handle, exclusive=True)
        except BlockingIOError:
            raise UsageError(f"another run uses '{path}'; wait for its end") from None
        try:
            yield FinishedBlocks(path, key, output)
        finally:
            if not (path / _PROGRESS).exists():
                (path / _LOCK).unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # files that are not ours
                    path.rmdir()
    finally:
        os.close(handle)


class FinishedBlocks:
    """The opened folder.

    Attributes:
        count: the number of finished blocks.
        choices: the quantization of each layer that ``--method auto`` has chosen; None before.
        measured_blocks: the number of blocks that ``--method auto`` has measured before it chooses.
        measured: for each layer of the measured blocks, bits and change of the model of each
            quantization that it may have.
    """

    def __init__(self, folder: Path, key: Digest, output: Output) -> None:
        self.folder, self._key, self._output = folder, key, output
        self.count = 0
        self.choices: dict[str, WeightQuantization] | None = None
        self.measured_blocks = 0
        self.measured: dict[str, list[list[float]]] = {}
        self._digests: dict[str, Digest] = {}
        if (folder / _PROGRESS).exists():
            self._read_progress()

    def _read_progress(self) -> None:
        try:
            progress = json.loads((self.folder / _PROGRESS).read_bytes())
            names = ("key", "blocks", "choices", "measured_blocks", "measured", "digests")
            key, count, choices, measured_blocks, measured, digests = (
                progress[name] for name in names
            )
        except (OSError, ValueError, KeyError, TypeError):
            raise self._damaged(_PROGRESS) from None
        if key != self._key:
            raise UsageError(
                f"'{self.folder}' has the finished blocks of a run with another model, text, "
                "options or version; remove it, or give another output with -o"
            )
        self.count, self._digests = count, digests
        self.measured_blocks, self.measured = measured_blocks, measured
        if choices is not None:
            self.choices = {name: WeightQuantization(**fields) for name, fields in choices.items()}

    def _write_progress(self) -> None:
        choices = None
        if self.choices is not None:
            choices = {name: asdict(each) for name, each in self.choices.items()}
        progress = {
            "key": self._key, "blocks": self.count, "choices": choices,
            "measured_blocks": self.measured_blocks, "measured": self.measured,
            "digests": self._digests,
        }  # fmt: skip
        with writing(self.folder / _PROGRESS):
            write_atomically(self.folder / _PROGRESS, json.dumps(progress).encode())

    @property
    def described(self) -> str:
        """The blocks of earlier runs, "2 blocks" or "2 measured blocks"; "" if there are none."""
        if self.count:
            return counted(self.count, "block")
        return counted(self.measured_blocks, "measured block") if self.measured_blocks else ""

    def add_measured(
        self, measured: Mapping[str, list[list[float]]], states: Sequence[Array]
    ) -> None:
        """Write the measured effects of the layers of another block.

        Args:
            measured: see the attribute; the layers of all measured blocks.
            states: the hidden states of each chunk before the next block of the float model.

        Raises:
            InputError: a file cannot be written.
        """
        earlier = self._float_states_file
        self.measured, self.measured_blocks = dict(measured), self.measured_blocks + 1
        self._write_states(self._float_states_file, states, earlier)

    def add_choices(self, choices: dict[str, WeightQuantization]) -> None:
        """Write the chosen quantization of each layer in place of the measured effects.

        Raises:
            InputError: a file cannot be written.
        """
        earlier = self._float_states_file
        self.choices = choices
        self.measured, self.measured_blocks = {}, 0
        self._digests.pop(earlier, None)
        self._write_progress()
        with writing(self.folder):
            (self.folder / earlier).unlink(missing_ok=True)

    def add(
        self,
        tensors: Sequence[InferenceTensor],
        errors: Sequence[LayerError],
        states: Sequence[Array],
    ) -> None:
        """Write a finished block.

        Args:
            tensors: those that differ from the model's, as the output stores them.
            states: the hidden states of each chunk before the next block.

        Raises:
            InputError: a file cannot be written.
        """
        ggml = {
            tensor.name: [tensor.ggml_type, list(tensor.shape)]
            for tensor in tensors
            if isinstance(tensor, GgmlTensor)
        }
        properties = {"errors": [asdict(each) for each in errors], "ggml": ggml}
        written = [
            PrimitiveTensor(each.raw, each.name) if isinstance(each, GgmlTensor) else each
            for each in tensors
        ]
        self._write(f"block-{self.count}.irpa", Dataset(properties, Theta(written)))
        earlier = self._states_file
        self.count += 1
        self._write_states(self._states_file, states, earlier)

    @property
    def _states_file(self) -> str:
        return f"states-{self.count}.irpa"

    @property
    def _float_states_file(self) -> str:
        return f"float-states-{self.measured_blocks}.irpa"

    def _write_states(self, name: str, states: Sequence[Array], earlier: str) -> None:
        """Write hidden states and the progress; remove the file of the states before."""
        arrays = [PrimitiveTensor(array, str(number)) for number, array in enumerate(states)]
        self._write(name, Dataset({}, Theta(arrays)))
        self._digests.pop(earlier, None)
        self._write_progress()
        with writing(self.folder):
            (self.folder / earlier).unlink(missing_ok=True)

    def _write(self, name: str, dataset: Dataset) -> None:
        dataset.save(self.folder / name)
        self._digests[name] = digest_of_file(self.folder / name)

    def states(self) -> list[Array]:
        """Return the hidden states of each chunk before the first block that is not finished.

        Raises:
            InputError: the file is damaged.
        """
        return self._read_states(self._states_file)

    def float_states(self) -> list[Array]:
        """Return the hidden states of each chunk before the first block that is not measured.

        Raises:
            InputError: the file is damaged.
        """
        return self._read_states(self._float_states_file)

    def _read_states(self, name: str) -> list[Array]:
        tensors = self._read(name).theta.flatten()
        return [tensors[str(number)].stored_arrays[0] for number in range(len(tensors))]

    def blocks(self) -> list[tuple[list[InferenceTensor], list[LayerError]]]:
        """Return the tensors and the errors of each finished block; see `add`.

        Raises:
            InputError: a file is damaged.
        """
        return [self._block(number) for number in range(self.count)]

    def _block(self, number: int) -> tuple[list[InferenceTensor], list[LayerError]]:
        dataset = self._read(f"block-{number}.irpa")
        ggml = dataset.properties["ggml"]
        tensors = []
        for name, tensor in dataset.theta.flatten().items():
            if name in ggml:
                ggml_type, shape = ggml[name]
                tensor = GgmlTensor(tensor.stored_arrays[0], ggml_type, tuple(shape), name)
            elif self._output == "checkpoint" and isinstance(tensor, PlanarQuantizedTensor):
                tensor = checkpoint_tensor_of(tensor)
            tensors.append(tensor)
        errors = [
            LayerError(**{**fields, "shape": tuple(fields["shape"])})
            for fields in dataset.properties["errors"]
        ]
        return tensors, errors

    def _read(self, name: str) -> Dataset:
        path = self.folder / name
        try:
            is_whole = digest_of_file(path) == self._digests.get(name)
        except (OSError, SubquantError):
            is_whole = False
        if not is_whole:
            raise self._damaged(name)
        return Dataset.load(path)

    def _damaged(self, name: str) -> InputError:
        return InputError(f"'{self.folder / name}' is damaged; remove the folder to begin anew")

    def remove(self) -> None:
        """Remove the files of the run; InputError if that fails."""
        with writing(self.folder):
            for pattern in _OWN_FILES:
                for path in self.folder.glob(pattern):
                    path.unlink(missing_ok=True)
        self.count = 0
