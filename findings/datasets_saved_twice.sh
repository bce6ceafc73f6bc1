#!/bin/bash
# Guess: save_to_disk to a folder replaces the data set there, and map's cache lies in the library's own cache folder.
#        So all *.arrow files of such a folder are its data.
# Seen:  shards of an earlier save with another number of shards stay, and map writes its cache beside the data that was
#        loaded from disk. load_from_disk reads state.json and is right; whoever reads *.arrow (load_dataset("arrow"),
#        pyarrow, duckdb, polars) gets every row three times here, without an error.
# Known: datasets 5.2.0 (2026-11); earlier ones not run. Found by reading folders that other programs wrote.
. "$(dirname "$0")/lib.sh"
packages pyarrow==26.0.1 datasets==5.2.0
prints "saved in 2 shards: 2 .arrow files
saved again in 1 shard: 3 .arrow files
after load_from_disk and map: 4 .arrow files, of which 1 is named cache-*
load_from_disk: 20 rows
load_dataset of *.arrow: 60 rows" env HF_HOME="$work/home" HF_HUB_OFFLINE=1 python - <<'END'
import glob

import datasets

datasets.disable_progress_bars()
rows = datasets.Dataset.from_dict({"text": [str(i) for i in range(20)]})


def files(name="*"):
    return len(glob.glob(f"folder/{name}.arrow"))


rows.save_to_disk("folder", num_shards=2)
print(f"saved in 2 shards: {files()} .arrow files")
rows.save_to_disk("folder", num_shards=1)
print(f"saved again in 1 shard: {files()} .arrow files")
datasets.load_from_disk("folder").map(lambda row: {"text": row["text"] + "!"})
print(f"after load_from_disk and map: {files()} .arrow files, of which {files('cache-*')} is named cache-*")
print(f"load_from_disk: {len(datasets.load_from_disk('folder'))} rows")
found = datasets.load_dataset("arrow", data_files="folder/*.arrow", split="train")
print(f"load_dataset of *.arrow: {len(found)} rows")
END
