-- Schedules: broadcasts that an automation repeats.
ALTER TABLE workbench.broadcasts ADD COLUMN scheduled boolean NOT NULL DEFAULT false;

CREATE TABLE workbench.schedules (
    org_id         bigint NOT NULL,
    automation_id  uuid NOT NULL,
    planned_until  timestamptz NOT NULL,
    PRIMARY KEY (org_id, automation_id),
    FOREIGN KEY (org_id, automation_id) REFERENCES workbench.automations (org_id, id)
);
