"""Several processes write one run's files, into one folder."""

from __future__ import annotations

from pathlib import Path

from tests.distributed.programs import run

BODY = """
saver = L.callbacks.ModelCheckpoint(monitor="val", save_top_k=2, save_last=True)
trainer = trainer(2, max_epochs=4, logger=True, enable_checkpointing=True, callbacks=[saver], log_every_n_steps=1)
trainer.fit(Net(), DataLoader(rows(32), 4), DataLoader(rows(32), 4))
best = trainer.validate(ckpt_path="best", dataloaders=DataLoader(rows(32), 4), verbose=False)
same = best["val"] == float(saver.best_model_score)
print(f"{trainer.log_dir} {saver.best_model_path} {same}\\n", end="", flush=True)
"""


def test_one_folder_with_the_files_of_one_run(tmp_path: Path) -> None:
    ended = run(tmp_path, BODY)
    assert ended.code == 0, ended.errors
    first, second = ended.output.splitlines()
    assert first == second
    assert first.startswith("runs/Net/version_0 ")
    assert first.endswith("True")
    (folder,) = (tmp_path / "runs" / "Net").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoints", "metrics.csv"]
    assert len(list((folder / "checkpoints").iterdir())) == 3
    assert len((folder / "metrics.csv").read_text().splitlines()) == 1 + 16 + 2 * 4 + 1
