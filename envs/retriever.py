"""The local search index over a corpus file, and what any retriever promises.

The index is built in memory when the retriever is made. Queries never go through a query parser: they are cut into
words like the documents, so no text can raise or act as syntax.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from envs.corpus import Passage, read_corpus
from envs.names import name_key

TITLE_BOOST, EXACT_BOOST = 3.0, 20.0
"""Weights of a title word and of a query that is the whole title, against 1 for a body word."""
LONGEST_QUERY = 64
"""Words of a query that count, the first ones."""
LONGEST_WORD = 40
"""Longer words, in characters, are not indexed (they are no words)."""
HEAP_BYTES = 256 * 2**20


class RetrieverError(Exception):
    """Retrieval failed; the message is one sentence for people."""


class Retriever(Protocol):
    """Finds passages for a query."""

    async def search(self, query: str, topk: int) -> list[Passage]:
        """Up to `topk` passages, best first; none for a query without words. Raises RetrieverError."""
        ...


class LocalRetriever:
    """BM25 over title, body and whole title of each document, in this process (tantivy)."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        import tantivy

        self._tantivy: Any = tantivy
        self._passages = list(passages)
        builder = tantivy.SchemaBuilder()
        builder.add_integer_field("number", stored=True)
        for field in ("title", "body"):
            builder.add_text_field(field, tokenizer_name="whitespace")
        builder.add_text_field("exact", tokenizer_name="raw")
        self._schema = builder.build()
        self._searcher = self._build()

    @classmethod
    def from_file(cls, path: Path) -> "LocalRetriever":
        """Reads a corpus (JSONL: id, title, text) and indexes it. Raises ValueError naming file and line."""
        return cls(read_corpus(path))

    def _build(self) -> Any:
        index = self._tantivy.Index(self._schema)
        writer = index.writer(heap_size=HEAP_BYTES, num_threads=1)  # one thread: the order of equal scores is fixed
        for number, passage in enumerate(self._passages):
            title = name_key(passage.title)
            document = self._tantivy.Document()
            document.add_integer("number", number)
            document.add_text("title", title)
            document.add_text("exact", title)
            document.add_text("body", name_key(passage.text))
            writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()
        index.reload()
        return index.searcher()

    async def search(self, query: str, topk: int) -> list[Passage]:
        """Like `find`; a query takes well under a millisecond, so it runs in the event loop."""
        return [passage for passage, _ in self.find(query, topk)]

    def find(self, query: str, topk: int) -> list[tuple[Passage, float]]:
        """Up to `topk` passages with their BM25 scores, best first. Never raises for any query text."""
        assert topk >= 1
        query = query.encode("utf-8", "replace").decode()  # half of a surrogate pair is no character, and matches none
        words = [word for word in name_key(query).split() if len(word) <= LONGEST_WORD][:LONGEST_QUERY]
        if not words:
            return []
        clauses = [self._term("exact", " ".join(words), EXACT_BOOST)]
        for word in dict.fromkeys(words):
            clauses += [self._term("title", word, TITLE_BOOST), self._term("body", word, 1.0)]
        should = [(self._tantivy.Occur.Should, clause) for clause in clauses]
        hits = self._searcher.search(self._tantivy.Query.boolean_query(should), topk).hits
        return [(self._passages[self._searcher.doc(place)["number"][0]], score) for score, place in hits]

    def _term(self, field: str, word: str, boost: float) -> Any:
        query = self._tantivy.Query
        return query.boost_query(query.term_query(self._schema, field, word), boost)
