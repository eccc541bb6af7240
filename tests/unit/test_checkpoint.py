"""Files of checkpoints: what a write that was cut off leaves is removed, and nothing else."""

from kernmantle.linalg.checkpoint import Checkpoint


def test_what_was_cut_off_is_removed_and_files_of_others_stay(tmp_path):
    cut = tmp_path / ".fit.k3x9_a2b.part"
    names = ".fit.old", ".fit.0.k3x9_a2b.part", ".fit[1].part", "fit.part", ".fits.a.part"
    others = [tmp_path / name for name in names]
    for file in (cut, *others):
        file.write_bytes(b"x")
    own = Checkpoint(tmp_path / "fit", {"n": 3}, 0.0)
    assert own.load() is None
    assert not cut.exists()
    assert all(file.exists() for file in others)
    own.save({"x": 1.5})
    assert own.load() == {"x": 1.5}
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "fit", *others])
