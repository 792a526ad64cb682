"""``waltap spark sql`` without a query: a prompt with history and completion, over tables as they move."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from waltap.offsets.private_file import private, private_folder

__all__ = ["SqlCompletion", "SqlPrompt", "history_file"]

KEYWORDS: Final = (
    "SELECT",
    "FROM",
    "WHERE",
    "GROUP",
    "BY",
    "ORDER",
    "HAVING",
    "LIMIT",
    "OFFSET",
    "JOIN",
    "LEFT",
    "RIGHT",
    "FULL",
    "OUTER",
    "INNER",
    "CROSS",
    "ON",
    "USING",
    "AS",
    "AND",
    "OR",
    "NOT",
    "IN",
    "IS",
    "NULL",
    "LIKE",
    "BETWEEN",
    "EXISTS",
    "CASE",
    "WHEN",
    "THEN",
    "ELSE",
    "END",
    "DISTINCT",
    "UNION",
    "ALL",
    "INTERSECT",
    "EXCEPT",
    "WITH",
    "OVER",
    "PARTITION",
    "ROWS",
    "DESC",
    "ASC",
    "CAST",
    "INTERVAL",
    "DATE",
    "TIMESTAMP",
    "TRUE",
    "FALSE",
    "VALUES",
    "EXPLAIN",
    "DESCRIBE",
    "SHOW",
    "COUNT",
    "SUM",
    "AVG",
    "MIN",
    "MAX",
    "COALESCE",
    "CURRENT_DATE",
    "CURRENT_TIMESTAMP",
    "DATE_TRUNC",
    "MAX_BY",
    "MIN_BY",
)
DELIMITERS: Final = " \t\n,;()=<>+*/"
REMEMBERED: Final = 1_000
HELP: Final = (
    "A statement ends with ; or an empty line. \\d lists the views, \\d VIEW its columns, \\q ends."
)


class SqlCompletion:
    """What a word may become: keywords in the letters typed, views, and columns of those that the
    statement names (of all, while it names none). ``columns``: view → columns, as SQL writes them."""

    def __init__(self, columns: Mapping[str, Sequence[str]]) -> None:
        self._columns = dict(columns)

    def words(self, begun: str, statement: str) -> list[str]:
        """Return what ``begun``, the last word of ``statement``, may become."""
        owner, dot, part = begun.rpartition(".")
        if dot and owner in self._columns:
            return [f"{owner}.{name}" for name in self._columns[owner] if _begins(name, part)]
        named = [view for view in self._columns if _is_in(view, statement)] or list(self._columns)
        columns = sorted({name for view in named for name in self._columns[view]})
        names = [name for name in (*columns, *sorted(self._columns)) if _begins(name, begun)]
        keywords = [word.lower() if begun.islower() else word for word in KEYWORDS]
        return names + [word for word in keywords if begun and _begins(word, begun)]


def _begins(name: str, part: str) -> bool:
    return name.lower().startswith(part.lower()) or name.startswith(f"`{part}")


def _is_in(view: str, statement: str) -> bool:
    return re.search(rf"(?<![\w`]){re.escape(view)}(?![\w`])", statement) is not None


def history_file() -> Path:
    """Return where statements are remembered: ``waltap/spark-sql-history`` in the user's state folder."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return Path(state or Path.home() / ".local/state") / "waltap/spark-sql-history"


class SqlPrompt:
    """Reads statements until the end of the input. ``run`` answers one, and raises what it cannot
    answer; ``columns`` tells the views there are now, ``say`` shows a line."""

    def __init__(
        self,
        run: Callable[[str], object],
        columns: Callable[[], Mapping[str, Sequence[str]]],
        say: Callable[[str], object],
        refused: Callable[[Exception], bool],
    ) -> None:
        """``refused``: shows an error of a statement; False for one that ends the prompt."""
        self._run, self._columns, self._say, self._refused = run, columns, say, refused
        self._begun: list[str] = []

    def loop(self, history: Path) -> None:
        r"""Ask until Ctrl-D or ``\q``; Ctrl-C leaves the statement."""
        self._say(HELP)
        with _editing(self._complete, history):
            while True:
                try:
                    line = input("...> " if self._begun else "sql> ")
                except EOFError:
                    return
                except KeyboardInterrupt:
                    self._begun = []
                    self._say("")
                    continue
                if not self._took(line):
                    return

    def _took(self, line: str) -> bool:
        """Take a line; False at the end."""
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
        """Do ``what``; show why it could not be done, where that does not end the prompt."""
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

    def _complete(self, begun: str, line: str) -> list[str]:
        return SqlCompletion(self._columns()).words(begun, "\n".join((*self._begun, line)))


@contextlib.contextmanager
def _editing(complete: Callable[[str, str], list[str]], history: Path) -> Iterator[None]:
    """Let `input` edit lines, remember and complete them, where Python has readline."""
    try:
        import readline
    except ImportError:  # some systems have none: a line is a line then
        yield
        return
    readline.set_completer_delims(DELIMITERS)
    readline.set_completer(_completer(readline, complete))
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    readline.clear_history()
    with contextlib.suppress(OSError):
        readline.read_history_file(history)
    readline.set_history_length(REMEMBERED)
    try:
        yield
    finally:
        readline.set_completer(None)
        with contextlib.suppress(OSError):  # a home that cannot be written keeps no history
            private_folder(history.parent)
            os.close(private(history, os.O_WRONLY | os.O_CREAT))  # statements have values of rows
            readline.write_history_file(history)


def _completer(
    readline: ModuleType, complete: Callable[[str, str], list[str]]
) -> Callable[[str, int], str | None]:
    found: list[str] = []

    def completer(begun: str, number: int) -> str | None:
        if number == 0:
            reader: Any = readline
            found[:] = complete(begun, reader.get_line_buffer())
        return found[number] if number < len(found) else None

    return completer
