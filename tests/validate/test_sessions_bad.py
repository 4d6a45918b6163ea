"""Programs beside the planner that are asked for what cannot be say so in one line."""

import pytest

from validate import __main__ as accuracy
from validate.bench import refit

BAD = [
    (accuracy, (), "required: command"),
    (refit, (), "required: --measurements, --output"),
]


@pytest.mark.parametrize(("program", "words", "said"), BAD)
def test_what_cannot_be_is_refused_in_one_line(program, words, said, tmp_path, capsys):
    code = program.main([word.format(tmp_path / "out") for word in words])
    out, err = capsys.readouterr()

    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()
