"""Makes the dashboards and their page:  python deploy/grafana/make.py [FOLDER]

FOLDER takes the place of the repository's root. Needs grafana-foundation-sdk (the extra `dev` has it).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cluster_page
import job_page
import planner_page
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from outline import outline
from parts import built

PAGES = {"job": job_page.PAGE, "cluster": cluster_page.PAGE, "planner": planner_page.PAGE}


def main(folder: Path) -> None:
    """Writes deploy/grafana/dashboards/*.json and docs/reference/dashboards.md below the folder."""
    documents = {
        name: json.dumps(built(page), cls=JSONEncoder, indent=2, sort_keys=True) + "\n" for name, page in PAGES.items()
    }
    dashboards = folder / "deploy" / "grafana" / "dashboards"
    dashboards.mkdir(parents=True, exist_ok=True)
    for name, text in documents.items():
        (dashboards / f"{name}.json").write_text(text, encoding="utf-8")
    page = folder / "docs" / "reference" / "dashboards.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(outline(json.loads(text) for text in documents.values()), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2])
