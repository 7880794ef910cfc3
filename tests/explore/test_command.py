"""``scn explore`` from the command line."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from dataclasses import replace

import pytest

from torchscn.cli import main
from torchscn.training import TrainConfig


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as ended:
        main(["explore", *arguments])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


def test_a_port_in_use_is_named_in_one_sentence(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, _, err = call(capsys, "scn4-mnist", "--no-browser", "--port", str(port))
    assert code == 1
    assert err.startswith(f"scn: port {port} cannot be used (")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scn4-mnist", "--layer", "15"], "scn: --layer must be from 1 to 14, the layers of this network; got 15."),
        (["scn4-mnist", "--layer", "0"], "scn: --layer must be a whole number, at least 1; got 0."),
        (["scn4-mnist", "--port", "70000"], "scn: --port must be a whole number from 0 to 65535; got 70000."),
        (["nowhere"], "scn: 'nowhere' is neither a run folder nor a network of the package"),
    ],
)
def test_mistakes_end_in_one_sentence(capsys, arguments, message):
    code, _, err = call(capsys, *arguments, "--no-browser")
    assert code == 1
    assert err.startswith(message)
    assert len(err.splitlines()) == 1


def test_a_run_without_weights_is_refused(tmp_path, capsys):
    (tmp_path / "config.json").write_text(TrainConfig().to_json())
    code, _, err = call(capsys, str(tmp_path), "--no-browser")
    assert code == 1
    assert err.startswith("scn: ")
    assert str(tmp_path) in err
    assert "Traceback" not in err


@pytest.mark.parametrize("outcome", [False, OSError("no display")])
def test_without_a_browser_the_address_is_enough(monkeypatch, capsys, outcome):
    def open_browser(url):
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr("webbrowser.open", open_browser)
    monkeypatch.setattr("torchscn.explore.serve", lambda server, ready: (ready(), server.server_close()))
    code, out, err = call(capsys, "scn4-mnist", "--data-dir", "nowhere")
    assert code == 0
    assert re.fullmatch(r"scn4-mnist is at http://127\.0\.0\.1:\d+/ until you press Ctrl-C\.\n", out)
    assert err == "scn: no browser could be opened; go to the address above.\n"


def test_the_browser_is_opened_at_the_address_unless_told_otherwise(monkeypatch, capsys):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    monkeypatch.setattr("torchscn.explore.serve", lambda server, ready: (ready and ready(), server.server_close()))
    _, out, err = call(capsys, "scn4-mnist")
    assert opened == re.findall(r"http://\S+/", out)
    assert err == ""
    call(capsys, "scn4-mnist", "--no-browser")
    assert len(opened) == 1


def test_the_note_about_a_run_is_told(monkeypatch, capsys, mnist):
    monkeypatch.setattr("torchscn.training.load_trained", lambda run: replace(mnist, note="it is not finished."))
    monkeypatch.setattr("torchscn.explore.serve", lambda server, ready: server.server_close())
    assert call(capsys, "mine", "--no-browser")[2] == "scn: note: it is not finished.\n"


def test_ctrl_c_ends_it_cleanly():
    code = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # the tests may run with it ignored
        "from torchscn.cli import main\n"
        "main(['explore', 'scn4-mnist', '--no-browser'])\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True, env=os.environ) as process:
        url = re.search(r"http://\S+/", process.stdout.readline())[0]
        with urllib.request.urlopen(url, timeout=20) as page:
            assert page.status == 200
        with socket.create_connection(("127.0.0.1", int(url.split(":")[-1].strip("/")))):  # still open at the end
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "", "")
