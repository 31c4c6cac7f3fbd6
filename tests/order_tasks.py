"""Tickets for conf/decision/orders.yaml, whose world knows three orders."""

import json

ORDERS = {"A17": ("on_its_way", "none"), "A18": ("done", "return"), "A19": ("done", "none")}


def write_tasks(path):
    """Tickets about the three orders of conf/decision/orders.yaml."""
    lines = []
    for number, (delivery, offer) in ORDERS.items():
        for place, text in enumerate(("Where is {}?", "May I give {} back?", "{} has not come.")):
            expected = {"order": {"order": number}, "shipping": {"delivery": delivery}, "after_sales": {"offer": offer}}
            task = {"id": f"{number}-{place}", "prompt": text.format(number), "truth": [number]}
            lines.append(json.dumps(task | {"meta": {"expected": expected}}))
    path.write_text("\n".join(lines) + "\n")
