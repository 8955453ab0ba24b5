"""What `make golf` reads of recorded runs: which are drawn, and what their logs and scripts say of them."""

from __future__ import annotations

import base64
import lzma
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
import golf_rows  # isort: skip

CODE = """
class Hyperparameters:
    iterations = int(os.environ.get("ITERATIONS", 20000))
    tied: bool = bool(int(os.environ.get("TIE_EMBEDDINGS", "1")))
    fraction = float(os.environ.get("WARMDOWN_FRAC", 0.3))
    data_path = os.environ.get("DATA_PATH", "./data")
    seed = int(os.environ.get("SEED", 1337))
"""


def row(number: int, torch: str, world: int) -> golf_rows.Row:
    return golf_rows.Row(
        number=number, commit="c", script="train.py", log="l", torch=torch, gpu="H100-SXM-80GB", product="H100",
        world=world, allocated=1, reserved=1,
    )  # fmt: skip


def test_a_draw_has_rows_of_seldom_versions_beside_the_usual_one() -> None:
    usual, seldom = [row(number, "2.9", 8) for number in range(400)], [row(400 + n, "2.6", 1) for n in range(4)]

    drawn = golf_rows.draw_rows([*usual, *seldom], 40, seed=1)

    assert drawn == golf_rows.draw_rows([*usual, *seldom], 40, seed=1)
    assert len(drawn) == 40
    assert sum(each.torch == "2.6" for each in drawn) > 1


def test_older_torches_and_rows_of_unknown_ones_cannot_be_run() -> None:
    assert [golf_rows.can_be_run(row(0, torch, 1)) for torch in ("2.5", "2.6", "2.10", "")] == [
        False,
        True,
        True,
        False,
    ]


def test_settings_are_what_a_log_prints_under_the_names_of_the_script() -> None:
    head = "iterations:9000 tied:True\n  WARMDOWN_FRAC=0.667\ndata_path: /somewhere/else\nseed:42\nheads:8\n"

    assert golf_rows.read_settings(CODE, head) == {
        "ITERATIONS": "9000", "TIE_EMBEDDINGS": "1", "WARMDOWN_FRAC": "0.667"
    }  # fmt: skip


def test_settings_that_no_log_prints_are_those_of_the_command_on_the_page_beside_it() -> None:
    page = 'DATA_PATH=./data WARMDOWN_FRAC=0.5 OTHER=1\n$env:ITERATIONS = "4"; later 9,000\nITERATIONS=8'

    assert golf_rows.read_command(CODE, page) == {"WARMDOWN_FRAC": "0.5", "ITERATIONS": "4"}
    assert golf_rows.read_command(CODE, "about ITERATIONS=20,000 of them") == {}


def test_a_script_that_unpacks_itself_is_read_unpacked() -> None:
    packed = base64.b85encode(lzma.compress(CODE.encode())).decode()

    assert golf_rows.unpack(f'import lzma as L,base64 as B\nexec(L.decompress(B.b85decode("{packed}")))') == CODE
    assert golf_rows.unpack(CODE) == CODE
