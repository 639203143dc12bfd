-- Moves of waiting entries to another version. The entries of a move are fixed when it starts, and are moved page by page; each row says
-- where the entry was, where it is now and what was predicted, or why it was not moved.
CREATE TABLE workbench.moves (
    org_id         bigint NOT NULL,
    id             uuid NOT NULL,
    automation_id  uuid NOT NULL,
    version        integer NOT NULL,
    mode           jsonb NOT NULL,
    state          text NOT NULL CHECK (state IN ('planned', 'running', 'done', 'stopped', 'undoing', 'undone')),
    after          uuid,
    patient_until  timestamptz NOT NULL,
    created_at     timestamptz NOT NULL,
    created_by     uuid,
    ended_at       timestamptz,
    PRIMARY KEY (org_id, id),
    FOREIGN KEY (org_id, automation_id) REFERENCES workbench.automations (org_id, id)
);
CREATE INDEX moves_open ON workbench.moves (org_id, id) WHERE state IN ('planned', 'running', 'undoing');
CREATE INDEX moves_by_automation ON workbench.moves (org_id, automation_id, id);

CREATE TABLE workbench.entry_moves (
    org_id         bigint NOT NULL,
    move_id        uuid NOT NULL,
    entry_id       uuid NOT NULL,
    from_version   integer NOT NULL,
    from_node_id   text,
    from_step      integer,
    node_id        text,
    until          timestamptz,
    outcome        text,
    next_node_id   text,
    ends           text,
    reason         text,
    moved_at       timestamptz,
    kept           text,
    moved_back_at  timestamptz,
    PRIMARY KEY (org_id, move_id, entry_id)
);
CREATE INDEX entry_moves_by_entry ON workbench.entry_moves (org_id, entry_id, move_id);

ALTER TABLE workbench.entries ADD COLUMN started_version integer;
