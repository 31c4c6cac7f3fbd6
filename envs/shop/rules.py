"""What a good clerk writes at each decision node, as functions of the node's input; expected values come from them.

Values are texts throughout, so that one small grammar holds all of them: an empty text says "nothing to state".
"""

from collections.abc import Mapping
from typing import TypeAlias

from envs.types import Json

Value: TypeAlias = dict[str, Json]
NODES = ("intent", "retrieval", "policy", "response")
"""Of the worked example, in running order."""
INTENTS = ("where", "refund", "cancel", "address", "damaged", "thanks", "unclear")
QUERIES = {
    "where": ("tracking", "none"),
    "refund": ("purchase", "refund"),
    "cancel": ("purchase", "cancel"),
    "address": ("tracking", "address"),
    "damaged": ("purchase", "damage"),
    "thanks": ("none", "none"),
    "unclear": ("none", "none"),
}
"""Intent -> what is looked up about the order, and the topic of the rule."""
NEEDS: Mapping[str, tuple[str, ...]] = {
    intent: ("response",) if find == "none" else ("retrieval", *(["policy"] if rule != "none" else []), "response")
    for intent, (find, rule) in QUERIES.items()
}
"""Intent -> the nodes below the root that must run."""
PAID = ("refund", "cancel")
"""Intents whose approval gives money back, so that the answer names the amount."""
SENTENCES = {
    "where/processing": "We are packing your order.",
    "where/shipped": "Your order is on its way.",
    "where/delivered": "Your order has arrived.",
    "where/cancelled": "Your order was cancelled.",
    "refund/approve": "Your money comes back.",
    "refund/deny": "The time for a return is over.",
    "cancel/approve": "Your order is cancelled.",
    "cancel/deny": "Your order has left already.",
    "address/approve": "We use the new address.",
    "address/deny": "Your parcel is under way already.",
    "damaged/replace": "We send you a new one.",
    "damaged/deny": "The time for a claim is over.",
    "close": "You are welcome.",
    "clarify": "Which order, and what happened?",
}
"""Short texts of answers."""


def query(intent: Mapping[str, Json]) -> Value:
    """The lookup that an intent needs, e.g. `{"find": "purchase", "rule": "refund", "order": "5821"}`."""
    find, rule = QUERIES[str(intent["intent"])]
    return {"find": find, "rule": rule, "order": intent["order"] if find != "none" else ""}


def ruling(given: Mapping[str, Json]) -> Value:
    """Decision and reason from intent and retrieval; `none` where no rule was looked up."""
    found = _part(given, "retrieval")
    status, limit, days = str(found.get("status", "")), str(found.get("limit", "")), str(found.get("days", ""))
    if not limit or status in ("", "unknown"):
        return {"decision": "none", "reason": "no_rule"}
    if not limit.isdecimal():
        return _decided("approve", "not_shipped") if status == limit else _decided("deny", "shipped")
    if not days:
        return _decided("deny", "not_delivered")
    if int(days) > int(limit):
        return _decided("deny", "too_late")
    return _decided("replace" if given["intent"] == "damaged" else "approve", "in_time")


def answer(given: Mapping[str, Json]) -> Value:
    """The structured answer from intent, retrieval and policy, where they ran."""
    intent, found = str(given["intent"]), _part(given, "retrieval")
    status = str(found.get("status", ""))
    decision = _decision(intent, status, str(_part(given, "policy").get("decision", "none")))
    if decision in ("close", "clarify"):
        return {"decision": decision, "status": "", "date": "", "amount": "", "text": SENTENCES[decision]}
    paid = decision == "approve" and intent in PAID
    return {
        "decision": decision,
        "status": status,
        "date": found.get("date", ""),
        "amount": found.get("amount", "") if paid else "",
        "text": sentence(intent, decision, status),
    }


def sentence(intent: str, decision: str, status: str) -> str:
    """The short text of an answer, e.g. `"Your order is on its way."`; that of `clarify` where none fits."""
    last = status if decision == "inform" else decision
    return SENTENCES.get(f"{intent}/{last}", SENTENCES.get(decision, SENTENCES["clarify"]))


def _decision(intent: str, status: str, ruled: str) -> str:
    if intent == "thanks":
        return "close"
    if intent == "unclear" or status in ("", "unknown"):
        return "clarify"
    if intent == "where":
        return "inform"
    return "clarify" if ruled == "none" else ruled


def _decided(decision: str, reason: str) -> Value:
    return {"decision": decision, "reason": reason}


def _part(given: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    """A read node's value; empty where that node did not run."""
    part = given.get(name)
    return part if isinstance(part, dict) else {}
