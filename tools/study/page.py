"""The pages of the studies: tables between markers, and a picture of the claims."""

from pathlib import Path
from statistics import median
from typing import Any

from tools.results import fill_page, load_records, make_table
from tools.spread import summarize
from tools.study.noise import ADAPTED, AS_TRAINED, NOISES, RAISES
from tools.study.questions import STUDIES, Study
from tools.study.verdict import compare, judge
from torchscn.json_file import read_table

__all__ = ["write_pages"]

Record = dict[str, Any]
Errors = dict[str, dict[int, float]]  # of variants, by seed

_NOISE_RECORD = {
    **{"name": str, "model": str, "seed": int},
    "rows": [{"noise": float, "lam1": str, "raised": float, "error": float}],
}


def write_pages(records: Path, docs: Path) -> list[Path]:
    """Update ``claims.md`` and ``training.md`` from the records, and the picture of the claims.

    Args:
        records: folder with one folder of records for each study.
        docs: folder of the pages; the picture goes to its folder ``results``.

    Returns:
        The files that were written.
    """
    claims, recipe = (_load(records / name) for name in ("claims", "recipe"))
    noise = _load_noise(records / "noise")
    tables = {
        "claims": _claims(STUDIES["claims"], claims),
        "claim-runs": _variants(STUDIES["claims"], claims),
        "noise": _noise(noise),
        "noise-claims": _noise_claims(noise, STUDIES["claims"].seeds),
        "recipe": _gains(STUDIES["recipe"], recipe),
    }
    pages = [docs / "claims.md", docs / "training.md"]
    for page in pages:
        page.write_text(fill_page(page.read_text(), tables))
    return [*pages, _draw(STUDIES["claims"], claims, docs / "results" / "claims.png")] if claims else pages


def _load(folder: Path) -> dict[str, Record]:
    return load_records(folder) if any(folder.glob("*.json")) else {}


def _errors(study: Study, records: dict[str, Record]) -> Errors:
    found: Errors = {name: {} for name in study.variants}
    for name, record in records.items():
        variant = name.rpartition("-")[0]
        if variant in found:
            found[variant][record["seed"]] = record["test_error"]
    return found


def _claims(study: Study, records: dict[str, Record]) -> str:
    errors = _errors(study, records)
    rows = []
    for question in study.questions:
        said = [question.claim, question.source]
        for better, worse in question.pairs:
            gain = compare(errors[better], errors[worse])
            labels = [study.variants[name].label for name in (better, worse)]
            shown = [str(summarize([*errors[name].values()])) if errors[name] else "" for name in (better, worse)]
            cells = [f"{label}: {error}" if error else label for label, error in zip(labels, shown, strict=True)]
            rows.append([*said, *cells, judge(gain, study.seeds), "" if gain is None else str(gain)])
            said = ["", ""]
    return make_table(["claim", "source", "said to be better", "than", "verdict", "gain, points"], rows, n_texts=5)


_VARIANT_COLUMNS = ["what is trained", "parameters", "error %", "seeds"]


def _variants(study: Study, records: dict[str, Record]) -> str:
    return make_table(_VARIANT_COLUMNS, _variant_rows(study, records).values())


def _gains(study: Study, records: dict[str, Record]) -> str:
    """All variants, with what each brought over the one it is to be seen beside, over the seeds that both have."""
    errors = _errors(study, records)
    rows = []
    for name, row in _variant_rows(study, records).items():
        beside = study.variants[name].beside
        gain = compare(errors[name], errors[beside]) if beside else None
        rows.append([*row, "" if gain is None else str(gain)])
    return make_table([*_VARIANT_COLUMNS, "gain, points"], rows)


def _variant_rows(study: Study, records: dict[str, Record]) -> dict[str, list[str]]:
    """Label, parameters, error and seeds of every variant that has records."""
    errors = _errors(study, records)
    rows = {}
    for name, variant in study.variants.items():
        if not errors[name]:
            continue
        some = next(record for key, record in records.items() if key.rpartition("-")[0] == name)
        spread = summarize([*errors[name].values()])
        rows[name] = [variant.label, f"{some['parameters']:,}", str(spread), str(spread.count)]
    return rows


def _load_noise(folder: Path) -> dict[int, Errors]:
    """Errors by noise, by network and treatment of lam1, and by seed."""
    found: dict[int, Errors] = {noise: {} for noise in NOISES}
    for path in sorted(folder.glob("*.json")):
        record = read_table(path, _NOISE_RECORD)
        for row in record["rows"]:
            if row["noise"] not in found:
                continue  # measured when other noises were asked for
            name = f"{record['model']}, {row['lam1']}"
            found[row["noise"]].setdefault(name, {})[record["seed"]] = row["error"]
    return found


def _noise(found: dict[int, Errors]) -> str:
    rows = [["CNN-1", *_across(found, f"cnn1, {AS_TRAINED}")]]
    for treatment in (AS_TRAINED, *(f"raised by {value:g}" for value in RAISES), ADAPTED):
        rows.append([f"SCN-1, lam1 {treatment}", *_across(found, f"scn1, {treatment}")])
    return make_table(["error % with noise of", *(str(noise) for noise in found)], rows)


def _across(found: dict[int, Errors], name: str) -> list[str]:
    """The error of one network in every noise."""
    return [str(summarize([*errors[name].values()])) if name in errors else "" for errors in found.values()]


def _noise_claims(found: dict[int, Errors], seeds: int) -> str:
    asked = [
        ("Sparse coding beats its twin on noisy images.", f"scn1, {AS_TRAINED}", f"cnn1, {AS_TRAINED}"),
        ("A larger lam1 in the first layer helps (0.4 more).", "scn1, raised by 0.4", f"scn1, {AS_TRAINED}"),
        ("lam1 can be adapted by reconstruction, without labels.", f"scn1, {ADAPTED}", f"scn1, {AS_TRAINED}"),
    ]
    rows = []
    for claim, better, worse in asked:
        for noise in NOISES[1:]:
            gain = compare(found[noise].get(better, {}), found[noise].get(worse, {}))
            rows.append([claim, str(noise), judge(gain, seeds), "" if gain is None else str(gain)])
            claim = ""
    return make_table(["claim", "noise", "verdict", "gain, points"], rows, n_texts=3)


def _draw(study: Study, records: dict[str, Record], path: Path) -> Path:
    """The error of every variant, each seed a dot; one that did not learn is written at the edge."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    errors = {name: found for name, found in _errors(study, records).items() if found}
    figure, axes = plt.subplots(figsize=(8, 0.9 + 0.34 * len(errors)), layout="constrained")
    edge = 1.6 * median(summarize([*found.values()]).mean for found in errors.values())
    for row, (name, found) in enumerate(errors.items()):
        spread = summarize([*found.values()])
        axes.axhline(row, color="0.92", zorder=0)
        if spread.mean > edge:
            beside, text = axes.get_yaxis_transform(), f"{spread.mean:.0f} % →"
            axes.text(1.0, row, text, transform=beside, ha="right", va="center", backgroundcolor="white")
            continue
        axes.plot([*found.values()], [row] * len(found), "o", color="tab:blue", alpha=0.45, markersize=5)
        axes.errorbar(spread.mean, row, xerr=2 * (spread.error or 0), fmt="|", color="black", capsize=3, markersize=10)
        if name == "scn1":
            axes.axvline(spread.mean, color="tab:orange", linewidth=1, zorder=0)
    axes.set_yticks(range(len(errors)), [study.variants[name].label for name in errors])
    axes.invert_yaxis()
    axes.set_xlabel("error on held-out images, %: each seed, mean, and two standard errors")
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
