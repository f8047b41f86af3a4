"""What tests of a real Slurm or OAR have in common (``lab.riplay.real_site``)."""

from __future__ import annotations

import re

from lab.riplay.real_site import ROOT, Site, SiteError, why_none

__all__ = ["ROOT", "Site", "SiteError", "page_blocks", "why_no_slurm", "why_none"]


def why_no_slurm() -> str:
    """Empty if a Slurm can be brought up here, else the reason to skip."""
    return why_none("slurm")


def page_blocks(page: str, heading: str) -> list[str]:
    """What is typed in the sections of a page whose headings begin so, a block of lines each."""
    text = (ROOT / "docs" / page).read_text()
    (section,) = re.findall(rf"^## {heading}.*?$(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"^```console$(.*?)^```$", section, re.MULTILINE | re.DOTALL)
