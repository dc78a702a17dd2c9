"""Packed members on disk: what is written is what is read, and nothing damaged or foreign is."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from pfge import Ensemble, StorageError
from pfge.calibration import Temperatures
from pfge.packed import PackedMembers, PackSettings, pack_members
from pfge.packed.codes import deflate_text, inflate_text
from pfge.packed.encode import TensorForm
from pfge.storage.ensemble_folder import MANIFEST
from pfge.storage.files import checksum, read_tensors, write_tensors
from pfge.storage.record import EnsembleRecord
from tests.packed.close_members import X, close_members
from tests.resealed import edit_json, edit_manifest
from tests.toys import assert_same_weights, make_mlp


def make_packed(bits: int = 3, **settings: Any) -> PackedMembers:
    return pack_members(close_members(), bits, PackSettings(**settings))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ensemble = Ensemble(make_packed(), make_mlp, method="PFGE", iterations=[10, 20, 30, 40])
    ensemble.save(tmp_path / "saved")
    return tmp_path / "saved"


def the_file(folder: Path) -> Path:
    (file,) = folder.glob("*.safetensors")
    return file


def change_layout(folder: Path, change: str, to: str) -> None:
    """Rewrite the file with another layout, and the manifest with its checksum: as a forger would."""
    tensors, metadata = read_tensors(the_file(folder))
    assert change in metadata["layout"]
    metadata["layout"] = metadata["layout"].replace(change, to, 1)
    write_tensors(the_file(folder), {k: v.clone() for k, v in tensors.items()}, metadata)
    edit_manifest(folder, bytes=the_file(folder).stat().st_size, sha256=checksum(the_file(folder)))


@pytest.mark.parametrize("small_bits", [16, 32])
@pytest.mark.parametrize(("base_bits", "bits"), [(8, 1), (16, 3), (32, 8), (None, 8), (None, 16)])
def test_a_loaded_ensemble_is_the_saved_one(
    tmp_path: Path, base_bits: int | None, bits: int, small_bits: int
) -> None:
    packed = make_packed(bits, base_bits=base_bits, small_bits=small_bits)
    Ensemble(packed, make_mlp, method="PFGE", iterations=[1, 2, 3, 4]).save(tmp_path)
    loaded = Ensemble.load(tmp_path, make_mlp)
    assert (loaded.method, loaded.iterations, loaded.nbytes) == ("PFGE", [1, 2, 3, 4], packed.nbytes)
    for one, two in zip(loaded.members, packed, strict=True):
        assert_same_weights(one, two)
    assert torch.equal(loaded.predict(X), Ensemble(packed, make_mlp).predict(X))


def test_everything_is_in_one_file_beside_the_manifest(folder: Path) -> None:
    assert sorted(file.suffix for file in folder.iterdir()) == [".json", ".safetensors"]


def test_the_size_of_the_files_is_known_before_they_are_written(folder: Path) -> None:
    ensemble = Ensemble(make_packed(), make_mlp, method="PFGE", iterations=[10, 20, 30, 40])
    assert ensemble.file_bytes() == sum(file.stat().st_size for file in folder.iterdir())


def test_the_files_take_little_more_than_the_tensors(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    members = [{"w": torch.rand(200, 300, generator=g), "b": torch.rand(200, generator=g)} for _ in range(3)]
    packed = pack_members(members, 3, PackSettings())
    Ensemble(packed, make_mlp).save(tmp_path)
    on_disk = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert packed.nbytes < on_disk < packed.nbytes + 1500


def test_what_a_loaded_ensemble_holds_is_mapped_from_the_file_and_not_copied(folder: Path) -> None:
    loaded = Ensemble.load(folder, make_mlp)
    assert isinstance(loaded.members, PackedMembers)
    part = loaded.members.tensors["0.weight"].each[1]
    assert not isinstance(part, torch.Tensor)
    with safe_open(the_file(folder), framework="pt") as file:
        codes = file.get_tensor("each.codes")
    assert part.codes.untyped_storage().nbytes() >= codes.nbytes  # a view of the whole file's bytes
    assert torch.equal(codes[1, : len(part.codes)], part.codes)


def test_saving_the_other_kind_over_it_leaves_no_old_files(folder: Path) -> None:
    Ensemble(close_members(2), make_mlp).save(folder)
    assert len(Ensemble.load(folder, make_mlp)) == 2
    assert len(list(folder.iterdir())) == 3
    Ensemble(make_packed(), make_mlp).save(folder)
    assert len(Ensemble.load(folder, make_mlp)) == 4
    assert len(list(folder.iterdir())) == 2


def test_a_packed_ensemble_can_be_saved_over_itself(folder: Path) -> None:
    expected = make_packed()[3]
    Ensemble.load(folder, make_mlp).last(1).save(folder)
    loaded = Ensemble.load(folder, make_mlp)
    assert loaded.iterations == [40]
    assert_same_weights(loaded.members[0], expected)


def test_fresh_batch_norm_stays_packed(folder: Path) -> None:
    fresh = Ensemble.load(folder, make_mlp).with_fresh_batch_norm([X])
    assert isinstance(fresh.members, PackedMembers)
    model = make_mlp()
    fresh.members.load_into(model, 2)
    seen = model[0](X)  # type: ignore[index]
    torch.testing.assert_close(fresh.members[2]["1.running_mean"], seen.mean(0).detach())


def test_a_crash_while_saving_leaves_the_old_ensemble(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("pfge.storage.ensemble_folder.write_json", fail)
    with pytest.raises(OSError, match="No space left"):
        Ensemble(make_packed(1), make_mlp).save(folder)
    assert_same_weights(Ensemble.load(folder, make_mlp).members[0], make_packed()[0])


def test_a_flipped_bit_is_found(folder: Path) -> None:
    file = the_file(folder)
    data = bytearray(file.read_bytes())
    data[-5] ^= 4
    file.write_bytes(data)
    with pytest.raises(StorageError, match=f"{file.name} must have SHA-256 .*, found .*: it is damaged"):
        Ensemble.load(folder, make_mlp)


def test_missing_bytes_are_found(folder: Path) -> None:
    file = the_file(folder)
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(StorageError, match=f"{file.name} must have {size} bytes, found {size - 10}"):
        Ensemble.load(folder, make_mlp)


def test_a_missing_file_is_named(folder: Path) -> None:
    file = the_file(folder)
    file.unlink()
    with pytest.raises(StorageError, match=f"{file.name} is missing, but manifest.json names it as its mem"):
        Ensemble.load(folder, make_mlp)


def test_another_version_is_refused(folder: Path) -> None:
    edit_manifest(folder, version=9)
    with pytest.raises(StorageError, match=r"manifest\.json must have format version 3, found 9; update"):
        Ensemble.load(folder, make_mlp)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"file": "../x"}, "must give file, bytes, sha256 of each file"),
        ({"bytes": "1"}, "must give file, bytes, sha256 of each file"),
        ({"sha256": None}, "must give file, bytes, sha256 of each file"),
        ({"iterations": []}, "must give the iteration of each member, at least one"),
    ],
)
def test_a_manifest_that_says_too_little_is_refused(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    edit_manifest(folder, **changes)
    with pytest.raises(StorageError, match=message):
        Ensemble.load(folder, make_mlp)


def test_as_many_rows_as_iterations(folder: Path) -> None:
    edit_manifest(folder, iterations=[1, 2])
    with pytest.raises(StorageError, match=r"must hold 2 rows of each\..*, found \[4, "):
        Ensemble.load(folder, make_mlp)


@pytest.mark.parametrize(
    ("change", "to", "message"),
    [
        ("[3,64]", "[9,64]", r"must give a type or bits and group for each tensor, found \[9, 64\]"),
        ("[3,64]", "[2,64]", r"must hold \d+ numbers of each\.codes, found \d+"),
        ("[8,4]", "[800,4]", r"must hold 1 rows of base\.codes, found"),
        ('"float32"', '"save"', "must give each tensor's name, type and shape"),
        ('"float32"', '"Tensor"', "must give each tensor's name, type and shape"),
        ("[8,4]", "[-8,4]", "must give each tensor's name, type and shape"),
        ("[8,4]", "[true,4]", "must give each tensor's name, type and shape"),
        ("[8,4]", "[32,true]", "must give each tensor's name, type and shape"),
        ("[8,4]", f"[0,{2**63}]", "a whole number must have at most 64 bits"),
        ("[8,4]", f"[0,{2**32},{2**31}]", "must give each tensor's name, type and shape"),
        ("[3,64]", "[3,true]", r"must give a type or bits and group for each tensor, found \[3, True\]"),
        ("[3,64]", "[true,64]", r"must give a type or bits and group for each tensor, found \[True, 64\]"),
        ("[3,64]", f"[3,{2**63}]", "a whole number must have at most 64 bits"),
        ("]", "", "must hold a layout in JSON"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(folder: Path, change: str, to: str, message: str) -> None:
    change_layout(folder, change, to)
    with pytest.raises(StorageError, match=message):
        Ensemble.load(folder, make_mlp)


# Types of torch whose numbers cannot be copied or computed with, and one that no file of tensors can hold.
FOREIGN_TYPES = ["quint8", "bits8", "uint4", "int1", "float4_e2m1fn_x2", "complex128"]


@pytest.mark.parametrize("kind", FOREIGN_TYPES)
def test_a_tensor_of_a_type_that_no_file_holds_is_refused(folder: Path, kind: str) -> None:
    change_layout(folder, '"float32"', f'"{kind}"')
    with pytest.raises(StorageError, match=f"must give each tensor's name, type and shape, found .*{kind}"):
        Ensemble.load(folder, make_mlp)


def test_a_tensor_without_numbers_may_have_any_size_that_torch_can_count(tmp_path: Path) -> None:
    members = [{"w": torch.zeros(0, 2**40), "b": torch.ones(1) + k} for k in range(2)]
    Ensemble(pack_members(members, 3, PackSettings()), make_mlp).save(tmp_path)
    assert Ensemble.load(tmp_path, make_mlp).members[1]["w"].shape == (0, 2**40)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("each.codes", torch.zeros(4, 21), "must hold each.codes in torch.uint8, found torch.float32"),
        ("base.steps", torch.zeros(1, 11), "must hold base.steps in torch.bfloat16, found torch.float32"),
        ("other", torch.zeros(3), r"must hold 0 numbers of other, found \[3\]"),
        ("other", torch.zeros(()), r"must hold 0 numbers of other, found \[\]"),
    ],
)
def test_numbers_of_another_type_or_shape_are_refused(
    folder: Path, name: str, tensor: torch.Tensor, message: str
) -> None:
    tensors, metadata = read_tensors(the_file(folder))
    write_tensors(the_file(folder), {k: v.clone() for k, v in (tensors | {name: tensor}).items()}, metadata)
    edit_manifest(folder, bytes=the_file(folder).stat().st_size, sha256=checksum(the_file(folder)))
    with pytest.raises(StorageError, match=message):
        Ensemble.load(folder, make_mlp)


def test_members_of_different_types_are_saved_and_loaded(tmp_path: Path) -> None:
    members = [{"w": torch.ones(2, 4) + k, "b": torch.arange(4.0) + k} for k in range(2)]
    members[1] = {name: tensor.half() for name, tensor in members[1].items()}
    packed = pack_members(members, 3, PackSettings())
    Ensemble(packed, make_mlp).save(tmp_path)
    for one, two in zip(Ensemble.load(tmp_path, make_mlp).members, packed, strict=True):
        assert_same_weights(one, two)
    assert [member["b"].tolist() for member in packed] == [[0, 1, 2, 3], [1, 2, 3, 4]]


def test_the_manifest_says_what_is_there(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["format"] == "pfge-packed-ensemble"
    assert (manifest["method"], manifest["model"]) == ("PFGE", "tests.toys:make_mlp")
    assert manifest["bytes"] == the_file(folder).stat().st_size


def test_temperatures_are_saved_with_packed_members(tmp_path: Path) -> None:
    temperatures = Temperatures(1.5, (1.0, 0.5, 2.0, 1.0))
    Ensemble(make_packed(), make_mlp, temperatures=temperatures).save(tmp_path)
    assert Ensemble.load(tmp_path, make_mlp).temperatures == temperatures


FORMS: dict[str, int | TensorForm] = {"0.weight": TensorForm((6, 3), PackSettings(6, 16)), "4.weight": 3}


@pytest.fixture
def mixed_folder(tmp_path: Path) -> Path:
    """A folder with one tensor in components, not deflated."""
    packed = pack_members(close_members(), FORMS, PackSettings(small_bits=8))
    (tmp_path / "mixed").mkdir()
    packed.write(tmp_path / "mixed", EnsembleRecord(iterations=(None,) * 4), deflated=False)
    return tmp_path / "mixed"


def test_components_are_saved_and_their_version_is_2(mixed_folder: Path, folder: Path) -> None:
    packed = pack_members(close_members(), FORMS, PackSettings(small_bits=8))
    loaded = Ensemble.load(mixed_folder, make_mlp)
    assert loaded.nbytes == packed.nbytes
    for one, two in zip(loaded.members, packed, strict=True):
        assert_same_weights(one, two)
    versions = [
        json.loads((saved / "manifest.json").read_text())["version"] for saved in (mixed_folder, folder)
    ]
    assert versions == [2, 1]  # an older reader knows what has no components


def test_fewer_members_than_components_are_saved_and_loaded(tmp_path: Path) -> None:
    whole = Ensemble(pack_members(close_members(), FORMS, PackSettings(small_bits=8)), make_mlp)
    one = whole.last(1)
    one.save(tmp_path)
    loaded = Ensemble.load(tmp_path, make_mlp)
    assert_same_weights(loaded.members[0], whole.members[3])
    assert torch.equal(loaded.predict(X), one.predict(X))


@pytest.mark.parametrize(
    ("change", "to", "message"),
    [
        (
            '["float16",[6,16],[3,16]]',
            '["float16"]',
            r"must give a type or bits and group for each tensor, found \['float16'\]",
        ),
        (
            '["float16",[6,16],[3,16]]',
            '["float16",null,[3,16]]',
            "must give a type or bits and group for each tensor, found",
        ),
        (
            '["float16",[6,16],[3,16]]',
            '["float16",[6,16]]',
            r"must hold \d+ numbers of component.codes, found",
        ),
        ("[6,16]", "[9,16]", r"must give a type or bits and group for each tensor, found \[9, 16\]"),
        ('"float16",[6,16]', '"float16",' + "[6,16]," * 4 + "[6,16]", "must hold 1 rows of component.codes"),
    ],
)
def test_components_that_do_not_fit_are_refused(
    mixed_folder: Path, change: str, to: str, message: str
) -> None:
    change_layout(mixed_folder, change, to)
    with pytest.raises(StorageError, match=message):
        Ensemble.load(mixed_folder, make_mlp)


@pytest.fixture
def deflated_folder(tmp_path: Path) -> Path:
    """The same members, deflated."""
    packed = pack_members(close_members(), FORMS, PackSettings(small_bits=8))
    (tmp_path / "deflated").mkdir()
    packed.write(tmp_path / "deflated", EnsembleRecord(iterations=(None,) * 4), deflated=True)
    return tmp_path / "deflated"


def change_deflated(folder: Path, **changed: torch.Tensor) -> None:
    """Rewrite the file with other streams or another layout, and the manifest with its checksum."""
    tensors, metadata = read_tensors(the_file(folder))
    write_tensors(the_file(folder), {k: v.clone() for k, v in (tensors | changed).items()}, metadata)
    edit_manifest(folder, bytes=the_file(folder).stat().st_size, sha256=checksum(the_file(folder)))


def test_what_is_deflated_is_read_as_it_was(deflated_folder: Path) -> None:
    packed = pack_members(close_members(), FORMS, PackSettings(small_bits=8))
    loaded = Ensemble.load(deflated_folder, make_mlp)
    assert loaded.nbytes == packed.nbytes
    for one, two in zip(loaded.members, packed, strict=True):
        assert_same_weights(one, two)
    assert json.loads((deflated_folder / "manifest.json").read_text())["version"] == 3


@pytest.mark.parametrize(("size", "version"), [(300, 3), (3, 2)])
def test_components_are_deflated_where_that_is_smaller(tmp_path: Path, size: int, version: int) -> None:
    g = torch.Generator().manual_seed(0)
    members = [{"w": torch.randn(size, size, generator=g)} for _ in range(3)]
    forms = {"w": TensorForm((4, 4, 4), PackSettings(8, None))}
    packed = pack_members(members, forms, PackSettings())
    Ensemble(packed, make_mlp).save(tmp_path)
    assert json.loads((tmp_path / "manifest.json").read_text())["version"] == version
    if version == 3:  # codes in the middle are more frequent
        assert the_file(tmp_path).stat().st_size < 0.95 * packed.nbytes
    loaded = Ensemble.load(tmp_path, make_mlp)
    assert_same_weights(loaded.members[2], packed[2])
    assert loaded.file_bytes() == sum(file.stat().st_size for file in tmp_path.iterdir())


def layout_of(folder: Path, change: str, to: str) -> torch.Tensor:
    text = inflate_text(read_tensors(the_file(folder))[0]["layout"])
    assert change in text
    return deflate_text(text.replace(change, to, 1))


@pytest.mark.parametrize(
    ("change", "to", "message"),
    [
        ("[6,16]", "[9,16]", r"must give a type or bits and group for each tensor, found \[9, 16\]"),
        ("[6,16]", "[5,16]", r"must hold 1 rows of component.codes of 5 bits, found None"),
        (
            '"mix.float16":["float16",[4,2]]',
            '"mix.float16":["float16",[4,3]]',
            "the stream mix.float16 must hold 24 bytes, found",
        ),
        (
            '"mix.float16":["float16",[4,2]]',
            '"mix.float16":["float16",[4,999999999]]',
            r"the stream mix.float16 must hold 7999999992 bytes, but \d+ cannot stand for so many",
        ),
        (
            '"mix.float16":["float16",[4,2]]',
            '"mix.float16":["save",[4,2]]',
            "the type and shape of mix.float16",
        ),
        *(
            ('"mix.float16":["float16"', f'"mix.float16":["{kind}"', "the type and shape of mix.float16")
            for kind in FOREIGN_TYPES
        ),
        (
            '"mix.float16":["float16",[4,2]]',
            f'"mix.float16":["float16",[0,{2**70}]]',
            "a whole number must have at most 64 bits",
        ),
        (
            '"mix.float16":["float16",[4,2]]',
            '"mix.float16":["float16",[true,8]]',
            "the type and shape of mix.float16",
        ),
        (
            '"mix.float16":["float16"',
            '"mix.float16":["int16"',
            "must hold mix.float16 in torch.float16, found torch.int16",
        ),
        ('"mix.float16":', '"other":', "must list its streams, .*mix.float16"),
        ("]", "", "must hold a layout in JSON"),
    ],
)
def test_a_deflated_layout_that_does_not_fit_is_refused(
    deflated_folder: Path, change: str, to: str, message: str
) -> None:
    change_deflated(deflated_folder, layout=layout_of(deflated_folder, change, to))
    with pytest.raises(StorageError, match=message):
        Ensemble.load(deflated_folder, make_mlp)


def test_a_stream_that_is_damaged_or_another_is_refused(deflated_folder: Path) -> None:
    for stream in (torch.full((9,), 255, dtype=torch.uint8), torch.zeros(4), torch.zeros(2, 2)):
        change_deflated(deflated_folder, layout=stream.to(torch.uint8) if stream.ndim == 1 else stream)
        with pytest.raises(StorageError, match="must hold a layout in"):
            Ensemble.load(deflated_folder, make_mlp)


@pytest.mark.parametrize(
    ("iterations", "expected"),
    [
        ([None] * 10_001, "must list at most 10,000 members, found 10,001"),
        (["1"], "must give the iteration of each member"),
        ([True], "must give the iteration of each member"),
    ],
)
def test_iterations_of_a_stranger_are_few_numbers(
    tmp_path: Path, iterations: list[Any], expected: str
) -> None:
    members = pack_members(close_members(1), 3, PackSettings())
    Ensemble(members, make_mlp).save(tmp_path / "e")
    edit_json(tmp_path / "e" / MANIFEST, iterations=iterations)
    with pytest.raises(StorageError, match=expected):
        Ensemble.load(tmp_path / "e", make_mlp)
