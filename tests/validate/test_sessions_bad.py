"""Sessions that are asked for what cannot be say so in one line, before they start."""

import pytest

from validate import __main__ as accuracy
from validate.bench import refit, session
from validate.plans import session as gpu_session

BAD = [
    (accuracy, (), "required: command"),
    (session, (), "required: --output"),
    (session, ("--output", "{}", "--minutes", "x"), "got 'x', wanted a number"),
    (session, ("--output", "{}", "--minutes", "-1"), "minutes: got -1"),
    (session, ("--output", "{}", "--ranks", "0"), "gpus: got 0"),
    (refit, (), "required: --measurements, --output"),
    (gpu_session, (), "required: --output"),
    (gpu_session, ("--output", "{}", "--device", "tpu"), "invalid choice: 'tpu'"),
    (gpu_session, ("--output", "{}", "--subjects", "1,x"), "got 'x', wanted a whole number"),
    (gpu_session, ("--output", "{}", "--subjects", "9"), "subjects: got 9, wanted 1 to 8"),
    (gpu_session, ("--list", "--subjects", "0"), "subjects: got 0, wanted 1 to 8"),
    (gpu_session, ("--output", "{}", "--models", "nosuch"), "unknown model 'nosuch'"),
    (gpu_session, ("--output", "{}", "--plans", "foo2"), "unknown axis 'foo'"),
    (gpu_session, ("--output", "{}", "--modes", "fast"), "unknown mode 'fast'"),
    (gpu_session, ("--output", "{}", "--known", "/no"), "--known /no: no such file"),
    (gpu_session, ("--output", "{}", "--hardware", "h1000"), "unknown hardware 'h1000'"),
    (gpu_session, ("--output", "{}", "--profile", "nosuch"), "unknown profile or file 'nosuch'"),
]


@pytest.mark.parametrize(("program", "words", "said"), BAD)
def test_a_session_that_cannot_be_is_refused_in_one_line(program, words, said, tmp_path, capsys):
    code = program.main([word.format(tmp_path / "out") for word in words])
    out, err = capsys.readouterr()

    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()
