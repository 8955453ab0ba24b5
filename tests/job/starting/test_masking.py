"""Secrets of a command and of texts are masked, and what decides memory is not."""

from __future__ import annotations

import json

import pytest

from planner.job.masking import CommandMask, mask_text, mask_variable

HF = "hf_" + "a1B2" * 8


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("env HF_TOKEN=abcd MODE=fast python t.py", "env HF_TOKEN=*** MODE=*** python t.py"),
        ("python t.py --hub-token abcd --lr 3 lr=1e-4", "python t.py --hub-token *** --lr 3 lr=1e-4"),
        ("t.py --api_key=abcd --pad-token-id 3 --max-tokens 9", "t.py --api_key=*** --pad-token-id 3 --max-tokens 9"),
        ("docker run -e TOKEN=abcd -e NCCL_ALGO=Ring i t.py", "docker run -e TOKEN=*** -e NCCL_ALGO=Ring i t.py"),
        ("srun --export=ALL,K=abcd,CUDA_VISIBLE_DEVICES=0 t.py", "srun --export=ALL,K=***,CUDA_VISIBLE_DEVICES=0 t.py"),
        ("python t.py --db postgres://me:abcd@host/db", "python t.py --db postgres://***@host/db"),
        ("PYTORCH_ALLOC_CONF=expandable_segments:True t.py", "PYTORCH_ALLOC_CONF=expandable_segments:True t.py"),
        (f"python t.py {HF}", "python t.py ***"),
    ],
)  # fmt: skip
def test_a_command_is_shown_with_its_names_and_without_its_secrets(words: str, shown: str) -> None:
    assert " ".join(CommandMask(words.split()).words) == shown


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("export KEY='a b' && X=$KEY python t.py --n=1", "export KEY=*** && X=*** python t.py --n=1"),
        ('{"env_vars": {"USER": "ab", "NCCL_DEBUG": "INFO"}}', '{"env_vars": {"USER": "***", "NCCL_DEBUG": "INFO"}}'),
        ("lower=abcd python t.py", "lower=*** python t.py"),
    ],
)  # fmt: skip
def test_variables_within_one_word_are_masked(word: str, shown: str) -> None:
    assert CommandMask(["bash", "-c", word], {"lower": "abcd"} if "lower" in word else {}).words == (
        "bash",
        "-c",
        shown,
    )


def test_what_a_program_says_of_a_value_is_masked() -> None:
    mask = CommandMask(["python", "t.py", "--hub-token", "s3cr"], {"MODE": "long-enough", "PYTHONPATH": "/shared/x"})

    assert mask.mask("ValueError: s3cr in long-enough of /shared/x/t.py, not s3crets") == (
        "ValueError: *** in *** of /shared/x/t.py, not s3crets"
    )


def test_a_long_value_is_masked_within_a_word_too() -> None:
    mask = CommandMask(["env", "A=longer-than-sixteen", "B=not-so-long", "python", "t.py"])

    assert mask.mask("xlonger-than-sixteenlonger-than-sixteen not-so-longer") == "x****** not-so-longer"


def test_json_stays_json_and_keeps_what_is_no_secret() -> None:
    document = {
        "hf_token": "abcd", "pad_token": "<pad>", "seconds_per_token": 0.1, "text": 'said "password": "abcd"',
        "url": "https://me:abcd@host/x", "token": None, "tokens": 5, "place": "a.py:3",
    }  # fmt: skip

    assert json.loads(mask_text(json.dumps(document))) == {
        **document, "hf_token": "***", "text": 'said "password": "***"', "url": "https://***@host/x",
    }  # fmt: skip


def test_masked_again_is_the_same_as_once() -> None:
    text = f"token={HF} https://a:b@c Authorization: Bearer {'x' * 20} --api-key abc"

    assert mask_text(mask_text(text)) == mask_text(text)


def test_of_a_variable_only_what_is_no_secret_leaves_its_machine() -> None:
    assert [mask_variable("PLANNER_TOKEN", "abcd"), mask_variable("DB", "pg://u:p@h"), mask_variable("MODE", "x")] == [
        "***",
        "pg://***@h",
        "x",
    ]
