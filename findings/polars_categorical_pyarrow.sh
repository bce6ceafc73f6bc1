#!/bin/bash
# Guess: an Arrow file that polars writes with a Categorical column is a table like any other to pyarrow, which wrote
#        the format: a dictionary of strings.
# Seen:  polars' dictionary holds string_view, for which pyarrow lacks kernels: it opens the file and gives Python
#        values, but cannot cast the column to strings or write it as parquet. The column of plain strings, which polars
#        writes as string_view, can be cast and written.
# Known: polars 2.1.0 and pyarrow 26.0.1 (2026-11). Found when a reader took such a file for damaged.
. "$(dirname "$0")/lib.sh"
packages polars==2.1.0 pyarrow==26.0.1
prints "String, as string_view: to_pylist works, cast works, write_table works
Categorical, as dictionary of string_view: to_pylist works, cast fails, write_table fails" python - <<'END'
import polars as pl, pyarrow as pa, pyarrow.feather as feather, pyarrow.parquet as pq


def outcome(call):
    try:
        call()
        return "works"
    except pa.ArrowNotImplementedError:
        return "fails"


for kind in (pl.String, pl.Categorical):
    pl.DataFrame({"text": pl.Series(["x", "y", "x"]).cast(kind)}).write_ipc("table.arrow")
    table = feather.read_table("table.arrow")
    column, type = table["text"], table.schema.field("text").type
    calls = {"to_pylist": column.to_pylist, "cast": lambda: column.cast(pa.string()),
             "write_table": lambda: pq.write_table(table, "table.parquet")}
    stored = f"dictionary of {type.value_type}" if pa.types.is_dictionary(type) else type
    print(f"{kind.__name__}, as {stored}:", ", ".join(f"{name} {outcome(call)}" for name, call in calls.items()))
END
