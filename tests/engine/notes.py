"""A table to write notes into, for tests of the database itself."""

from __future__ import annotations

from sqlalchemy import Column, Integer, MetaData, Table, Text, insert, select

from celery_commander.engine import Database

SCHEMA = MetaData()
notes = Table("notes", SCHEMA, Column("id", Integer, primary_key=True), Column("text", Text))


def write(database: Database, text: str = "note") -> None:
    with database.begin() as connection:
        connection.execute(insert(notes).values(text=text))


def texts(database: Database) -> list[str]:
    with database.read() as connection:
        return [text for (text,) in connection.execute(select(notes.c.text).order_by(notes.c.id))]
