"""What was to be read and is not there any more: the end of a query, or a warning, as `failOnDataLoss` says."""

from __future__ import annotations

import logging
from typing import NamedTuple

from penstock.errors import DataLost

log = logging.getLogger("penstock.spark")

HOW_TO_GO_ON = "to go on with what there is, set the option failOnDataLoss to false"


class Losses(NamedTuple):
    """`fails` is the option."""

    fails: bool

    def report(self, what: str, **details: object) -> None:
        if self.fails:
            raise DataLost(f"{what}; {HOW_TO_GO_ON}", **details)
        log.warning("%s; going on, as failOnDataLoss is false", what)
