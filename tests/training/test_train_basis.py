"""Laws of learnt bases: they find in which directions people differ, no more directions than there are, and serve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kits.tiny_models import save_model, save_tokenizer
from typer.testing import CliRunner

from fitrouter.config import RewardModelConfig, ScorerConfig
from fitrouter_evaluators.scoring import Answer
from fitrouter_evaluators.scoring.models import Item, ModelError
from fitrouter_evaluators.scoring.models.checkpoint import identify
from fitrouter_evaluators.scoring.models.embedding import load, load_embedder, read_basis
from fitrouter_evaluators.scoring.plugin import make_scorer
from fitrouter_integrations.cli import app

torch = pytest.importorskip("torch")
from fitrouter_evaluators.training.train_basis import Votes, directions, fit, train_basis  # noqa: E402

COLOURS, LENGTHS = ("blue", "good"), ("long", "short")


def text(draw: np.random.Generator) -> str:
    return " ".join(
        draw.choice(["is it blue", "no idea", "a good answer", "bad sky", "long question", "short cook"], 3)
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A causal model without its head, and a sentence-transformers model."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    folder = tmp_path_factory.mktemp("models")
    save_model(folder / "causal", "qwen2", head=False)
    save_model(folder / "bert", "bert", head=False)
    save_tokenizer(folder / "bert", chat=False)
    words = Transformer(str(folder / "bert"))
    pooling = Pooling(words.get_embedding_dimension())
    SentenceTransformer(modules=[words, pooling]).save(str(folder / "sentences"))
    return {name: folder / name for name in ("causal", "sentences")}


def pairs(folder: Path, file: Path, *, differ: float, n: int = 600) -> Path:
    """Pairs of six users who all like one direction of the model's embedding, and differ by sign in another."""
    draw, lines = np.random.default_rng(1), []
    embedder = load_embedder(folder, max_tokens=64, batch_tokens=4096, device="cpu", report=print)
    texts = [text(draw) for _ in range(2 * n)]
    vectors = embedder.score([Item(answer=Answer(text=t, prompt="which")) for t in texts])
    left, sizes, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    z = left[:, :2] * np.sqrt(len(left))
    assert sizes[1] > 1e-3
    for i in range(n):
        user, (a, b) = i % 6, (2 * i, 2 * i + 1)
        logit = 2.0 * (z[a, 0] - z[b, 0]) + differ * (1 if user % 2 else -1) * (z[a, 1] - z[b, 1])
        label = float(draw.random() < 1.0 / (1.0 + np.exp(-logit)))
        row = {"user": f"u{user}", "prompt": "which", "a": {"text": texts[a]}, "b": {"text": texts[b]}, "label": label}
        lines.append(json.dumps(row))
    file.write_text("\n".join(lines))
    return file


@pytest.mark.parametrize("kind", ["causal", "sentences"])
def test_a_basis_finds_what_people_differ_in(folders: dict[str, Path], kind: str, tmp_path: Path) -> None:
    """Where people differ in one direction, the personal model is better on held-out pairs, and the basis has it."""
    data = pairs(folders[kind], tmp_path / "pairs.jsonl", differ=2.0)
    sheet = train_basis(data, str(folders[kind]), tmp_path / "b.safetensors", rank=4)
    found = sheet["held_out"]
    assert found["personal_accuracy"] > found["shared_accuracy"] + 0.03
    assert found["personal_nll"] < found["shared_nll"] - 0.03
    assert sheet["dimensions"][:2] == ("shared", "taste_1")
    entry = RewardModelConfig(
        name="taste", kind="embedding", model=str(folders[kind]), basis=tmp_path / "b.safetensors"
    )
    model = load(entry, "cpu", print)
    draw = np.random.default_rng(9)
    items = [Item(answer=Answer(text=text(draw), prompt="which")) for _ in range(300)]
    out = model.score(items)
    assert out.shape == (300, len(sheet["dimensions"]))
    np.testing.assert_allclose(out.std(axis=0), 1.0, atol=0.35)
    np.testing.assert_allclose(out, np.concatenate([model.score([item]) for item in items]), atol=1e-4)
    service = make_scorer(ScorerConfig(models=(entry,)))
    assert service.names[-1] == f"rm.taste.{sheet['dimensions'][-1]}"


def test_a_world_without_differences_gets_one_dimension(folders: dict[str, Path], tmp_path: Path) -> None:
    """Where all people agree, held-out pairs choose the shared direction only."""
    data = pairs(folders["causal"], tmp_path / "pairs.jsonl", differ=0.0)
    sheet = train_basis(data, str(folders["causal"]), tmp_path / "b.safetensors", rank=6)
    assert sheet["dimensions"] == ("shared",)
    assert sheet["held_out"]["personal_nll"] == sheet["held_out"]["shared_nll"]


def test_training_is_deterministic_and_recovers_directions() -> None:
    """On synthetic differences: w within 10° of the truth, the one direction of people's differences within 15°."""
    draw = np.random.default_rng(2)
    z, user = draw.normal(size=(4000, 8)), draw.integers(0, 20, 4000)
    sign = np.where(np.arange(20) % 2, 1.0, -1.0)[user]
    y = (draw.random(4000) < 1.0 / (1.0 + np.exp(-(1.5 * z[:, 0] + 1.5 * sign * z[:, 3])))).astype(float)
    votes = Votes(torch.from_numpy(z), torch.from_numpy(y), torch.from_numpy(user))
    found = directions(fit(votes, 20, 5, 4.0), 5).numpy()
    assert abs(found[0, 0]) > np.cos(np.radians(10))
    assert abs(found[1, 3]) > np.cos(np.radians(15))
    assert found.tolist() == directions(fit(votes, 20, 5, 4.0), 5).numpy().tolist()


def test_a_basis_belongs_to_its_model(folders: dict[str, Path], tmp_path: Path) -> None:
    """A file for another model, a damaged one and a missing one are refused with the remedy."""
    data, path = pairs(folders["causal"], tmp_path / "p.jsonl", differ=1.0, n=60), tmp_path / "b.safetensors"
    train_basis(data, str(folders["causal"]), path, rank=2)
    basis = read_basis(path)
    assert basis.weights == identify(folders["causal"])

    def use(model: str = "causal", file: Path = path) -> None:
        settings: dict[str, Any] = {"name": "t", "kind": "embedding", "model": str(folders[model]), "basis": file}
        load(RewardModelConfig(**settings), "cpu", print)

    use()
    with pytest.raises(ModelError, match=r"was learnt with the model .* run `fitrouter train basis` with this one"):
        use("sentences")
    with pytest.raises(ModelError, match="there is no basis"):
        use(file=tmp_path / "none")
    (tmp_path / "broken").write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ModelError, match="is no basis"):
        use(file=tmp_path / "broken")


def test_the_command_writes_a_file(folders: dict[str, Path], tmp_path: Path) -> None:
    """`fitrouter train basis` prints the data sheet; too few pairs are refused."""
    data = pairs(folders["causal"], tmp_path / "p.jsonl", differ=1.0, n=40)
    out = tmp_path / "b.safetensors"
    arguments = ["train", "basis", "--data", str(data), "--model", str(folders["causal"]), "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["pairs"] == 40
    assert out.is_file()
    data.write_text("\n".join(data.read_text().splitlines()[:5]))
    assert "5 pairs" in str(CliRunner().invoke(app, arguments).exception)
