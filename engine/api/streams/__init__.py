"""The kinds of streams, one a file, and what each kind can do.

Streams return each other: a `DataStream` makes a `KeyedStream`, whose results are a `DataStream` again. So that their
files can import each other, imports at run time go one way (data → keyed → windowed, and both → connected and the
joins), and the environment makes the `DataStream` of an operator's results. Only annotations need the other direction.

Names with a leading underscore are for the files of `engine/api`, not for a job's author.
"""
