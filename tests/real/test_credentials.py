"""Credentials on users' machines: each kind of profile, an expired session, a missing profile."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.doctor import Report
from harness.signer import ACCOUNT, Signer, arn
from harness.world import World

TOKEN = "the-token-of-the-portal"
SESSION = "own"
LOGIN = f"arn:aws:iam::{ACCOUNT}:user/somebody"
EXPIRES = "2100-01-01T00:00:00Z"

CONFIG = f"""
[profile process]
credential_process = {{process}}

[profile sso]
sso_session = {SESSION}
sso_account_id = {ACCOUNT}
sso_role_name = reader

[sso-session {SESSION}]
sso_region = eu-west-1
sso_start_url = https://example.awsapps.com/start

[profile login]
login_session = {LOGIN}
"""

PROCESS = """#!/bin/sh
echo '{"Version": 1, "AccessKeyId": "of-the-process", "SecretAccessKey": "secret", "SessionToken": "session"}'
"""


@pytest.fixture
def signer(world: World) -> Iterator[Signer]:
    """Sets up a home directory with each kind of profile and a signed-in user; yields the server for credentials."""
    folder = world.folder / "home" / ".aws"
    process = world.folder / "process"
    process.write_text(PROCESS)
    process.chmod(0o755)
    write(folder / "config", CONFIG.format(process=process))
    # The AWS CLI writes these files when a user signs in.
    sso = {"accessToken": TOKEN, "expiresAt": EXPIRES, "region": "eu-west-1"}
    write(folder / "sso" / "cache" / f"{hashlib.sha1(SESSION.encode()).hexdigest()}.json", json.dumps(sso))
    keys = {"accessKeyId": "of-the-login", "secretAccessKey": "secret", "sessionToken": "session"}
    login = {
        "accessToken": keys | {"accountId": ACCOUNT, "expiresAt": EXPIRES},
        "tokenType": "aws_sigv4",
        "refreshToken": "refresh",
        "clientId": "arn:aws:signin:::devtools/same-device",
        "dpopKey": "no key: nothing is refreshed",
    }
    write(folder / "login" / "cache" / f"{hashlib.sha256(LOGIN.encode()).hexdigest()}.json", json.dumps(login))
    made = Signer(TOKEN)
    yield made
    made.stop()


def write(path: Path, text: str) -> None:
    """Writes a file and creates its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def variables(signer: Signer, profile: str) -> dict[str, str]:
    """Returns variables that name only a profile."""
    return {"AWS_PROFILE": profile, "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", **signer.variables}


def doctor(world: World, changed: dict[str, str]) -> Report:
    """Returns the doctor's report with these variables."""
    done = world.ask_with(changed, "doctor", "--output", "json", "--queue-url", world.queue_url)
    return Report(done.returncode, json.loads(done.stdout)["checks"])


@pytest.fixture
def with_login(world: World) -> None:
    """Has the world's commands run by a program as in a release's archives: built with the feature `login`."""
    program = os.environ.get("EBBTIDE_LOGIN_BIN")
    assert program, "EBBTIDE_LOGIN_BIN must name a program built with the feature `login`; tests/real/run without arguments builds it"
    world.binary = Path(program)


def test_a_process_gives_credentials(world: World, signer: Signer) -> None:
    report = doctor(world, variables(signer, "process"))
    assert report.found("credentials", "identity") == arn("of-the-process")


@pytest.mark.slow
@pytest.mark.usefixtures("with_login")
@pytest.mark.parametrize(
    ("profile", "key"),
    [
        pytest.param("sso", f"portal-{ACCOUNT}-reader", id="sso"),
        pytest.param("login", "of-the-login", id="login"),
    ],
)
def test_each_way_to_sign_in_works(world: World, signer: Signer, profile: str, key: str) -> None:
    report = doctor(world, variables(signer, profile))
    assert report.found("credentials", "identity") == arn(key)


@pytest.mark.parametrize(
    ("profile", "command"),
    [pytest.param("sso", "aws sso login", id="sso"), pytest.param("login", "aws login", id="login")],
)
def test_without_the_feature_the_way_without_is_named(
    world: World, signer: Signer, profile: str, command: str
) -> None:
    said = doctor(world, variables(signer, profile)).said("credentials", "identity")
    assert f'AWS_PROFILE is "{profile}", which signs in by `{command}`' in said
    assert f"credential_process = aws configure export-credentials --profile {profile} --format process" in said


@pytest.mark.slow
@pytest.mark.usefixtures("with_login")
def test_an_expired_session_is_reported(world: World, signer: Signer) -> None:
    signer.forget()
    said = doctor(world, variables(signer, "sso")).said("credentials", "identity")
    assert "no AWS credentials:" in said
    assert "aws sso login" in said


def test_a_missing_profile_is_named(world: World, signer: Signer) -> None:
    named = 'AWS_PROFILE is "nope", and neither the AWS config file nor the credentials file has that profile'
    assert named in doctor(world, variables(signer, "nope")).said("credentials", "identity")
    node = world.node()
    world.control_plane.kubectl.output("annotate", "node", node.name, "ebbtide/allow-test=true")
    wanted = ("--kind", "spot", "--node", node.name, "--queue-url", world.queue_url)
    sent = world.ask_with(variables(signer, "nope"), "send", "--yes", *wanted)
    assert sent.returncode == 1
    assert named in sent.stderr
    assert "give your own credentials that may send to the queue" in sent.stderr
    assert "try again" not in sent.stderr
    assert len(sent.stderr.splitlines()) == 1, sent.stderr


def test_an_empty_region_is_reported(world: World, signer: Signer) -> None:
    write(world.folder / "home" / ".aws" / "config", "[default]\nregion =\n")
    changed = {"AWS_REGION": ""}
    url = "https://sqs.eu-west-1.amazonaws.com/123456789012/q"
    done = world.ask_with(changed, "doctor", "--output", "json", "--queue-url", url)
    report = Report(done.returncode, json.loads(done.stdout)["checks"])
    assert report.found("queue", "region") == "eu-west-1"
    none = doctor(world, changed)
    assert "AWS's region is not known" in none.said("credentials", "settings")
