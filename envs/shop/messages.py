"""What customers write: templates with greetings, phrasings and endings, about seven families of requests."""

import random

GREETINGS = ("", "", "Hello,", "Hi,", "Hi there,", "Good morning,", "Dear team,", "Hello shop,", "Good day,")
ENDINGS = (
    "",
    "",
    "Thanks!",
    "Thank you.",
    "Best, {name}",
    "Regards, {name}",
    "Please hurry.",
    "{name}",
    "Yours, {name}",
)
NUMBERS = ("order {order}", "my order {order}", "order no. {order}", "order number {order}", "order #{order}")
"""How an order is named in a sentence."""
BODIES = {
    "where": (
        "where is {number}?",
        "when will {number} arrive?",
        "I am waiting for {number}, any news?",
        "can you track {number} for me?",
        "has {number} been sent?",
        "I have not heard of {number}. Where is the {product}?",
        "what is the status of {number}?",
        "I expected the {product} of {number} last week. Where is it?",
        "is the {product} from {number} on its way to {city}?",
        "please tell me the delivery date of {number}.",
    ),
    "refund": (
        "I want my money back for {number}.",
        "I would like to return the {product} from {number}.",
        "please refund {number}, I do not like the {product}.",
        "the {product} of {number} does not suit me. Can I send it back?",
        "can I get a refund for {number}?",
        "I changed my mind about {number} and want to give it back.",
        "how do I return {number}? The {product} is not what I hoped for.",
        "the {product} is too small. I want to return {number}.",
        "take back {number} and pay me back, please.",
    ),
    "cancel": (
        "please cancel {number}.",
        "I want to cancel {number}.",
        "stop {number}, I do not need the {product} any more.",
        "can you still cancel {number}?",
        "I ordered twice by mistake. Please cancel {number}.",
        "I found the {product} elsewhere, so cancel {number}.",
        "do not send {number}, I no longer want it.",
        "call off {number}, please.",
    ),
    "address": (
        "I moved. Please send {number} to {street} instead.",
        "can you change the address of {number}?",
        "the address of {number} is wrong, it must be {street}.",
        "please deliver {number} to my office in {city}.",
        "{number} should go to {street}, not to my old flat.",
        "I gave the wrong street for {number}. Can you correct it?",
        "update the delivery address for {number}, please.",
    ),
    "damaged": (
        "the {product} from {number} arrived broken.",
        "{number} came with a cracked {product}.",
        "my {product} is damaged. It is {number}.",
        "the {product} of {number} does not work at all.",
        "there is a big scratch on the {product}, {number}.",
        "{number}: the box was crushed and the {product} is in pieces.",
        "the {product} in {number} is defective.",
    ),
    "thanks": (
        "thank you for the quick help!",
        "the {product} is great, well done.",
        "just wanted to say thanks.",
        "everything arrived, I am very happy.",
        "you have the best shop in {city}!",
        "great service, have a nice weekend.",
        "all solved now, thank you.",
        "no more questions, bye.",
    ),
    "unclear": (
        "there is something wrong with my order.",
        "I have a problem with the {product}.",
        "can you help me with my order?",
        "it is about the {product}.",
        "this is not right, please do something.",
        "I need help with what I bought.",
        "please look into it.",
        "I have a question about my purchase.",
        "it did not go as planned.",
    ),
}
"""Family -> sentences. `thanks` and `unclear` name no order."""


def message(family: str, rng: random.Random, **words: str) -> str:
    """One message, e.g. `"Hi, where is order 5821? Thanks!"`; `words`: order, product, name, city, street."""
    number = rng.choice(NUMBERS).format(order=words["order"])
    greeting = rng.choice(GREETINGS)
    body = rng.choice(BODIES[family]).format(number=number, **words)
    if not greeting:
        body = body[0].upper() + body[1:]
    parts = (greeting, body, rng.choice(ENDINGS).format(name=words["name"]))
    return " ".join(part for part in parts if part)
