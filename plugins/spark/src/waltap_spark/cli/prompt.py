"""The prompt of ``waltap spark sql``, over the tables' newest rows."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from waltap.base.files.durable_file import private, private_folder

HELP: Final = (
    "A statement ends with ; or an empty line. \\d lists the views, \\d VIEW its columns, \\q ends."
)


def history_file() -> Path:
    """Return the file of earlier statements."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return Path(state or Path.home() / ".local/state") / "waltap/spark-sql-history"


def sql_words(spark: Any) -> list[str]:
    """Return the keywords and functions of a session's SQL."""
    found = spark.sql("SELECT keyword FROM sql_keywords()").union(spark.sql("SHOW FUNCTIONS"))
    return [word for (word,) in found.collect() if word.isidentifier()]


class SqlPrompt:
    """Reads statements until the end of the input."""

    def __init__(
        self,
        run: Callable[[str], object],
        columns: Callable[[], Mapping[str, Sequence[str]]],
        keywords: Callable[[], Iterable[str]],
        say: Callable[[str], object],
        refused: Callable[[Exception], bool],
    ) -> None:
        """Keep the functions that answer.

        ``run`` answers a statement and raises what it cannot answer. ``columns`` returns the current
        views with their columns, ``keywords`` the other words of the dialect; both as SQL writes
        them. ``say`` shows a line. ``refused`` shows an error of a statement and returns True, or
        returns False for an error that ends the prompt.
        """
        self._run, self._columns, self._keywords = run, columns, keywords
        self._say, self._refused = say, refused
        self._begun: list[str] = []

    def loop(self, history: Path) -> None:
        r"""Ask until Ctrl-D or ``\q``; Ctrl-C leaves the statement."""
        self._say(HELP)
        terminal = sys.stdin.isatty()
        # A pipe gets no prompts, which would be among the answers.
        ask = _editor(self._words, history) if terminal else lambda _prompt: input()
        while True:
            try:
                line = ask("...> " if self._begun else "sql> ")
            except EOFError:
                if not terminal:
                    self._took("")  # the last statement of a file may have no end
                return
            except KeyboardInterrupt:
                self._begun = []
                self._say("")
                continue
            if not self._took(line):
                return

    def _took(self, line: str) -> bool:
        """Accept a line; return False at the end."""
        word = line.strip()
        if not self._begun and word in ("\\q", "exit", "quit", "exit;", "quit;"):
            return False
        if not self._begun and word.split()[:1] == ["\\d"]:
            self._tried(lambda: self._describe(word[2:].strip()))
            return True
        if word:
            self._begun.append(line)
        if not self._begun or (word and not word.endswith(";")):
            return True
        statement, self._begun = "\n".join(self._begun).rstrip("; \n\t"), []
        if statement.strip():
            self._tried(lambda: self._run(statement))
        return True

    def _tried(self, what: Callable[[], object]) -> None:
        """Call ``what``, and show an error without ending the prompt."""
        try:
            what()
        except KeyboardInterrupt:
            self._say("given up")
        except Exception as error:
            if not self._refused(error):
                raise

    def _describe(self, view: str) -> None:
        found = self._columns()
        if not view:
            self._say("\n".join(found))
        elif view in found:
            self._say("\n".join(found[view]))
        else:
            self._say(f"there is no view {view}; \\d lists them")

    def _words(self) -> list[str]:
        """Return the words for Tab: names and keywords."""
        try:
            views, keywords = self._columns(), set(self._keywords())
        except Exception:  # noqa: BLE001 - a view that is gone must not end the line that is typed
            return []
        columns = sorted({name for found in views.values() for name in found})
        both = {form for word in keywords for form in (word.lower(), word.upper())}
        return [*columns, *sorted(views), *sorted(both)]


def _editor(words: Callable[[], list[str]], history: Path) -> Callable[[str], str]:
    """Return a function that reads a line at the terminal."""
    import re

    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory

    remembered: History
    try:
        private_folder(history.parent)
        # The history is private: statements contain values of rows.
        os.close(private(history, os.O_WRONLY | os.O_CREAT))
        remembered = FileHistory(history)
    except OSError:  # a read-only home keeps no history
        remembered = InMemoryHistory()
    session: PromptSession[str] = PromptSession(
        history=remembered,
        completer=WordCompleter(words, pattern=re.compile(r"[\w`]+")),
        complete_while_typing=False,
    )
    return session.prompt
