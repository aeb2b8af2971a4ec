"""Inputs of networks to calibrate with: layouts of folders, order of files, wrong arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subquant.calibration.networks.inputs import CalibrationInputs
from subquant.errors import InputError
from subquant.numerics.element_types import Array
from subquant.signature import ValueType

X = ValueType("f32", (2, 3), name="x")


N = ValueType("i64", (2,), name="n")


SAMPLES = np.arange(24, dtype=np.float32).reshape((8, 3))


def batches(folder: Path, *types: ValueType) -> list[list[list[Any]]]:
    inputs = CalibrationInputs(folder, types)
    return [[each.tolist() for each in inputs.batch(index)] for index in range(inputs.count)]


def test_layouts_of_a_folder(tmp_path: Path) -> None:
    expected = [[SAMPLES[n : n + 2].tolist()] for n in range(0, 8, 2)]
    for number, arrays in enumerate(([SAMPLES], np.split(SAMPLES, 4), [SAMPLES.reshape(4, 2, 3)])):
        for folder in (tmp_path / f"plain{number}", tmp_path / f"named{number}" / "x"):
            folder.mkdir(parents=True)
            for index, array in enumerate(arrays):
                np.save(folder / f"{index}.npy", array)
        assert batches(tmp_path / f"plain{number}", X) == expected
        assert batches(tmp_path / f"named{number}", X) == expected
    np.save(tmp_path / "plain0" / "n.npy", np.arange(8))
    (tmp_path / "plain0" / "0.npy").rename(tmp_path / "plain0" / "x.npy")
    assert batches(tmp_path / "plain0", X, N)[3] == [SAMPLES[6:].tolist(), [6, 7]]


def test_files_are_in_natural_order(tmp_path: Path) -> None:
    for number in (10, 9, 2):
        np.save(tmp_path / f"{number}.npy", np.full((2, 3), number, np.float32))
    assert [batch[0][0][0] for batch in batches(tmp_path, X)] == [2, 9, 10]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (SAMPLES.astype(np.float64), "has the type float64, expected float32; convert it with"),
        (SAMPLES[:, :2], r"has the shape \[8, 2\], expected \[2, 3\], or a multiple of 2"),
        (SAMPLES[:7], "has 7 samples, which batches of 2 do not divide"),
        (np.where(SAMPLES == 13, np.nan, SAMPLES), "has a NaN or an infinity in batch 2"),
    ],
)
def test_wrong_arrays(array: Array, message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", array.astype(np.float32) if "NaN" in message else array)
    with pytest.raises(InputError, match=message):
        batches(tmp_path, X)


def test_wrong_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no folder; expected one"):
        batches(tmp_path / "none", X)
    with pytest.raises(InputError, match=r"has no \.npy files"):
        batches(tmp_path, X)
    np.save(tmp_path / "y.npy", SAMPLES)
    with pytest.raises(InputError, match="has inputs named 'y'; the network's are 'x', 'n'"):
        batches(tmp_path, X, N)
    np.save(tmp_path / "x.npy", SAMPLES)
    (tmp_path / "y.npy").rename(tmp_path / "n.npy")
    np.save(tmp_path / "n.npy", np.arange(4))
    with pytest.raises(InputError, match="numbers of batches: 4 of x, 2 of n"):
        batches(tmp_path, X, N)
    (tmp_path / "n.npy").write_bytes(b"no array")
    with pytest.raises(InputError, match="is no array of NumPy"):
        batches(tmp_path, X, N)


def test_held_out_batches_are_spread() -> None:
    inputs = CalibrationInputs([SAMPLES.repeat(4, 0)], [X])
    assert inputs.split(0.25) == ([0, 1, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15], [2, 6, 10, 14])
    assert inputs.split(0) == (list(range(16)), [])
    assert inputs.split(0.01)[1] == [8]
    assert CalibrationInputs([SAMPLES[:2]], [X]).split(0.5) == ([0], [0])
