"""The results of a campaign as one table: a row for every recorded cell, whoever has run it."""

from __future__ import annotations

from typing import Any

import msgspec

from cluster_agent.campaigns.campaign_folder import CampaignFolder, recorded
from cluster_agent.replay import written_whole
from cluster_agent.scheduler.switches import OPTIONS as SWITCHES
from foundation.shell.command_line import distribution
from foundation.shell.plain_text import echo

OPTIONS = (
    "policy", "instance", "machine", "cap", "closed_loop", "seed", "configurations", "job_watts", *SWITCHES,
)  # fmt: skip


def write_table(folder: CampaignFolder) -> int:
    """campaign.csv and campaign.parquet: all recorded cells in the campaign's order, with all numbers of metrics.json.

    A part of a campaign adds its rows; none that was recorded is left out. Equal records give equal bytes, so it does
    not matter who writes it, or how many do.
    """
    rows: list[dict[str, Any]] = []
    for name, planned in recorded(folder).items():
        row: dict[str, Any] = {"folder": name, "trace": planned.cell.arguments[1]}
        row |= {one: planned.cell.options.get(one) for one in OPTIONS}
        rows.append(row | dict(_flat(msgspec.json.decode((folder.root / name / "metrics.json").read_bytes()))))
    columns = list(dict.fromkeys(key for row in rows for key in row)) or ["folder"]
    lines = [",".join(columns)] + [",".join(_quoted(row.get(key)) for key in columns) for row in rows]
    with written_whole.folder(str(folder.root)) as made:
        (made / "campaign.csv").write_text("\n".join(lines) + "\n")
        try:
            import pyarrow as pa
            import pyarrow.parquet
        except ModuleNotFoundError:
            extra = f"{distribution()}[export]"
            echo(f"campaign.parquet is not written: it needs pyarrow (pip install '{extra}')", to_stderr=True)
        else:
            table = pa.table({key: pa.array([row.get(key) for row in rows]) for key in columns})
            pyarrow.parquet.write_table(table, made / "campaign.parquet")
    return len(rows)


def _flat(metrics: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in metrics.items():
        inner = isinstance(value, dict)
        found += _flat(value, f"{before}{key}_") if inner else [(before + key, value)]
    return found


def _quoted(value: Any) -> str:
    text = "" if value is None else str(value)
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n') else text
