"""Who may do what."""

from __future__ import annotations

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.auth import Admin, AgentClaims, Authority, CredentialRefused, Right

CLAIMS = AgentClaims("r", "nonce", "0", frozenset({Right.CALL}))


def test_the_admin_key_is_the_admin_s():
    assert Authority("key").check("key") == Admin()


def test_a_token_says_what_it_was_minted_with_again_and_again():
    authority = Authority("key")
    token = authority.mint(CLAIMS)
    assert token == authority.mint(CLAIMS)
    assert [authority.check(token) for _ in range(3)] == [CLAIMS] * 3
    assert Authority("key").check(token) == CLAIMS


@given(st.text(st.characters(codec=None)))
def test_anything_else_is_refused_without_being_repeated(credential: str):
    with pytest.raises(CredentialRefused) as refused:
        Authority("a key of some length").check(credential)
    assert str(refused.value) == "Invalid or missing API key"


def test_a_token_of_another_deployment_an_altered_one_and_a_wrong_key_are_refused():
    authority = Authority("key")
    head, body, signature = authority.mint(CLAIMS).split(".")
    _, other_body, _ = authority.mint(AgentClaims("other", "nonce", "0")).split(".")
    for credential in (
        Authority("other key").mint(CLAIMS),
        f"{head}.{other_body}.{signature}",
        f"{head}.{body}.",
        "keyy",
        "ke",
        "",
    ):
        with pytest.raises(CredentialRefused):
            authority.check(credential)


@pytest.mark.parametrize(
    "claims",
    [
        {"sub": "r", "nonce": "n", "attempt": "0"},
        {"sub": "r", "nonce": "n", "attempt": "0", "rights": ["rule"]},
        {"sub": "r", "nonce": "n", "attempt": "0", "rights": 7},
        {"sub": 5, "nonce": "n", "attempt": "0", "rights": []},
        {"sub": "r", "nonce": "n", "attempt": "0", "rights": [], "iss": "somebody"},
    ],
)
def test_a_signed_token_with_other_claims_is_refused(claims: dict):
    authority = Authority("key")
    token = jwt.encode({"iss": "leyden"} | claims, authority._signing_key, algorithm="HS256")
    with pytest.raises(CredentialRefused):
        authority.check(token)


def test_unsigned_tokens_are_refused():
    claims = {"iss": "leyden", "sub": "r", "nonce": "n", "attempt": "0", "rights": ["call"]}
    with pytest.raises(CredentialRefused):
        Authority("key").check(jwt.encode(claims, "", algorithm="none"))


def test_with_an_empty_key_everyone_is_admin_but_a_token_still_says_whose_it_is():
    authority = Authority("")
    assert authority.open
    assert not Authority("key").open
    assert authority.check("anything") == authority.check("") == Admin()
    assert authority.check(authority.mint(CLAIMS)) == CLAIMS
    assert authority.check(Authority("key").mint(CLAIMS)) == Admin()


def test_the_signature_of_a_token_that_is_known_is_not_computed_again(monkeypatch: pytest.MonkeyPatch):
    authority = Authority("key")
    token = authority.mint(CLAIMS)
    authority.check(token)
    monkeypatch.delattr(jwt, "decode")
    assert authority.check(token) == CLAIMS
