"""Tests of NumPy archives as checkpoints."""

from __future__ import annotations

import io
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from windeck import checkpoint
from windeck.checkpoint.foreign import open_file
from windeck.checkpoint.stores import Store

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_arrays_of_every_dtype(write: Any, memory: Store, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrays = {f"x/{code}": rng.integers(0, 2, (7, 5)).astype(code) for code in DTYPES}
    arrays |= {"turned": arrays["x/f4"].T, "big": np.arange(9, dtype=">i4"), "one": np.float64(2)}
    arrays |= {"none": np.empty((0, 3), np.float32)}
    write(tmp_path / "a.npz", **arrays)
    checkpoint.import_(tmp_path / "a.npz", memory, step=4, chunk_bytes=16)
    for store in (memory, open_file(tmp_path / "a.npz")):
        with checkpoint.open(store) as found:
            assert found.names() == [f"model/{name}" for name in arrays]
            for name, array in arrays.items():
                tensor = found.tensor(f"model/{name}")
                assert tensor.dtype == torch.from_numpy(np.array(array, array.dtype.char)).dtype
                assert np.array_equal(tensor.numpy(), array), name
    assert checkpoint.log(memory)[0].step == 4


def test_names_that_end_as_members_do(memory: Store, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"a": np.ones(3), "a.npy": np.zeros(3), "a.npy.npy": np.full(3, 2.0)}
    np.savez(tmp_path / "a.npz", **arrays)
    checkpoint.import_(tmp_path / "a.npz", memory)
    with checkpoint.open(memory) as found:
        assert {name: found.tensor(f"model/{name}")[0].item() for name in arrays} == {
            "a": 1, "a.npy": 0, "a.npy.npy": 2,
        }  # fmt: skip


def test_the_directory_of_an_archive_is_read_twice(
    memory: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for each array, which would be quadratic."""
    opened, real = list[Any](), zipfile.ZipFile.__init__
    arrays: dict[str, Any] = {f"x{i}": np.full(3, i) for i in range(50)}
    np.savez(tmp_path / "a.npz", **arrays)

    def counted(self: zipfile.ZipFile, *given: Any, **options: Any) -> None:
        opened.append(given)
        real(self, *given, **options)

    monkeypatch.setattr(zipfile.ZipFile, "__init__", counted)
    checkpoint.import_(tmp_path / "a.npz", memory)
    assert len(opened) == 2
    with checkpoint.open(memory) as found:
        assert [int(found.tensor(f"model/x{i}")[2]) for i in range(50)] == [*range(50)]


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array(["a", "b"]), r"x.npy has dtype <U1, expected numbers or bool"),
        (np.array([{}, None]), r"x.npy has dtype object, expected numbers or bool"),
        (np.array(["2026-01-01"], "M8[s]"), r"x.npy has dtype datetime64\[s\], expected numbers"),
        (np.zeros(2, [("a", "i4")]), r"x.npy has dtype \[\('a', '<i4'\)\], expected numbers"),
    ],
)
def test_arrays_of_no_numbers(array: Any, words: str, memory: Store, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=array)
    with pytest.raises(ValueError, match=words):
        checkpoint.import_(tmp_path / "a.npz", memory)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_arrays_of_a_name(memory: Store, tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez(file, x=np.zeros(3))
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("x.npy", archive.read("x.npy"))
    words = r"a.npz cannot be read as an .npz file: it holds x.npy twice, expected different names"
    with pytest.raises(ValueError, match=words):
        checkpoint.import_(file, memory)


def header(shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    described = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue()


@pytest.mark.parametrize("packed", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("shape", [(1 << 40,), (1 << 29,), (1 << 62, 1 << 62), (-4,), (-1, -1), ()])
def test_shapes_beyond_the_archive(
    shape: tuple[int, ...], packed: int, memory: Store, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", packed) as archive:
        archive.writestr("x.npy", header(shape) + b"1234" * 2)
    with pytest.raises(
        ValueError, match=r"x.npy has shape \(.*expected the 8 bytes in the archive"
    ):
        checkpoint.import_(tmp_path / "a.npz", memory)
    with pytest.raises(ValueError, match=r"x.npy has shape"):
        open_file(tmp_path / "a.npz")


@pytest.mark.parametrize("packed", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_sizes_beyond_the_archive(packed: int, memory: Store, tmp_path: Path) -> None:
    """The directory of an archive has a size that nothing in it can have."""
    file = tmp_path / "a.npz"
    with zipfile.ZipFile(file, "w", packed) as archive:
        archive.writestr("x.npy", header((1 << 28,)) + b"1234")
        info = archive.getinfo("x.npy")
        info.file_size = len(header((1 << 28,))) + (1 << 30)
        if packed == zipfile.ZIP_STORED:
            info.compress_size = info.file_size
    with pytest.raises(ValueError, match=r"x.npy has 1,073,741,952 bytes, packed as .*, expected"):
        checkpoint.import_(file, memory)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", header((1,)) + b"1234")
    with pytest.raises(ValueError, match=r"x.npy has compression 14, expected none or deflate"):
        checkpoint.import_(file, memory)
    np.savez_compressed(file, x=np.zeros(5_000_000, np.float32))  # as well as deflate can
    checkpoint.import_(file, memory)


def test_wrong_files(memory: Store, tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    for content in (b"", b"hello"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"a.npz cannot be read as an .npz file: \w"):
            checkpoint.import_(file, memory)
    for member, content in (("notes.txt", b"x"), ("x.npy", b"no array"), ("x.npy", b"")):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(member, content)
        with pytest.raises(ValueError, match=r"a.npz cannot be read as an .npz file: \w"):
            checkpoint.import_(file, memory)
    np.savez(file, x=np.arange(1000))
    whole = file.read_bytes()
    for length in range(0, len(whole), 211):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"a.npz cannot be read as an .npz file: \w"):
            checkpoint.import_(file, memory)
    wrong = bytearray(whole)
    wrong[500] ^= 1
    file.write_bytes(wrong)
    with pytest.raises(ValueError, match=r"x in .*a.npz cannot be read: Bad CRC-32"):
        checkpoint.import_(file, memory)
    assert checkpoint.log(memory) == []


@pytest.mark.parametrize("packed", [False, True])
def test_every_flipped_byte(packed: bool, memory: Store, tmp_path: Path) -> None:
    """The arrays of the file, or a ValueError that names it."""
    file = tmp_path / "a.npz"
    arrays: Any = {"x": np.arange(40, dtype=np.int16), "layer/y": np.ones((2, 3))}
    (np.savez_compressed if packed else np.savez)(file, **arrays)
    whole = file.read_bytes()
    for place in range(len(whole)):
        for mask in (0x01, 0x80, 0xFF):
            wrong = bytearray(whole)
            wrong[place] ^= mask
            file.write_bytes(wrong)
            try:
                with warnings.catch_warnings(), open_file(file) as store:
                    warnings.simplefilter("ignore")
                    found = dict(store.scan())
                assert found
            except ValueError as error:
                assert "a.npz" in str(error)  # noqa: PT017
            except OSError as error:  # of a store, while it is read
                assert "a.npz" in str(error)  # noqa: PT017
