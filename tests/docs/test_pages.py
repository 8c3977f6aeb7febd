"""The pages that can be followed step by step do what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.page import ROOT, follow

PAGES = [
    "start.md",
    "concepts.md",
    "guides/worker.md",
    "guides/ring.md",
    "guides/scheduler.md",
    "guides/http.md",
    "guides/migrate-from-sqs.md",
    "guides/migrate-from-celery.md",
    "guides/migrate-from-kafka.md",
    "reference/config.md",
    "reference/errors.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_followed(page: str, tmp_path: Path) -> None:
    follow(ROOT / "docs" / page, tmp_path)
