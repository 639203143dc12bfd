-- Schedules of pages, their runs, and the emails of a run.

-- insert_page_schedule --
INSERT INTO page_schedules (org_id, id, title, sections, recipients, cron, timezone, next_at, created_at, created_by)
VALUES (:org_id, :id, :title, :sections, :recipients, :cron, :timezone, :next_at, :created_at, :created_by);

-- count_page_schedules --
SELECT count(*) FROM page_schedules WHERE org_id = :org_id;

-- list_page_schedules --
-- All schedules of an organization, the newest first.
SELECT org_id, id, title, sections, recipients, cron, timezone, next_at, created_at, created_by
FROM page_schedules WHERE org_id = :org_id ORDER BY id DESC;

-- find_page_schedule --
SELECT org_id, id, title, sections, recipients, cron, timezone, next_at, created_at, created_by
FROM page_schedules WHERE org_id = :org_id AND id = :schedule_id;

-- delete_page_schedule --
-- Delete a schedule with its runs; no row if there is none.
DELETE FROM page_schedules WHERE org_id = :org_id AND id = :schedule_id RETURNING title;

-- list_due_schedules --
-- Schedules of all organizations that have a run to plan.
SELECT org_id, id, cron, timezone, next_at FROM page_schedules WHERE next_at <= :now ORDER BY next_at;

-- plan_page_run --
-- Plan the run at a moment, and the next one; no row if another process has planned it.
WITH taken AS (
    UPDATE page_schedules SET next_at = :next_at
    WHERE org_id = :org_id AND id = :schedule_id AND next_at = :planned_at
    RETURNING org_id, id
)
INSERT INTO page_runs (org_id, id, schedule_id, at, state, due_at)
SELECT org_id, :run_id ::uuid, id, :at ::timestamptz, 'planned', :now ::timestamptz FROM taken
ON CONFLICT (org_id, schedule_id, at) DO NOTHING
RETURNING true;

-- find_due_page_runs --
-- Runs of all organizations that are to be made, or whose emails are to be sent.
SELECT org_id, id FROM page_runs WHERE due_at <= :now ORDER BY due_at LIMIT 100;

-- claim_page_run --
-- Take a due run until `lease`; no row if another process has it. `key_ended`: the key that made the schedule is revoked
-- or has expired. A page from before an erasure is not returned, also if the process that erased did not delete it.
WITH taken AS (
    UPDATE page_runs SET due_at = :lease, claim = claim + 1, tries = tries + 1
    WHERE org_id = :org_id AND id = :run_id AND due_at <= :now
    RETURNING org_id, id, schedule_id, at, state, claim, tries, error, made_at, html, email_html
), erased AS (
    SELECT max(erased_at) + interval '2 minutes' AS until FROM contacts WHERE org_id = :org_id
)
SELECT r.org_id, r.id, r.at, r.state, r.claim, r.tries, r.error, r.made_at,
       CASE WHEN r.made_at <= e.until THEN NULL ELSE r.html END AS html,
       CASE WHEN r.made_at <= e.until THEN NULL ELSE r.email_html END AS email_html,
       s.title, s.sections, s.recipients, s.created_by,
       EXISTS (SELECT FROM api_keys k WHERE k.org_id = s.org_id AND k.id = s.created_by
               AND (k.revoked_at IS NOT NULL OR k.expires_at <= :now)) AS key_ended
FROM taken r
JOIN page_schedules s ON s.org_id = r.org_id AND s.id = r.schedule_id
CROSS JOIN erased e;

-- keep_page_claim --
-- Extend a claim; no row if it has ended.
UPDATE page_runs SET due_at = :lease WHERE org_id = :org_id AND id = :run_id AND claim = :claim AND due_at > :now RETURNING true;

-- store_page --
-- Store the page of a run, unless the claim has ended or a contact was erased while it was made. An erasure is dated before
-- its commit, so the queries may still have seen a contact that was erased up to two minutes before.
UPDATE page_runs SET state = 'sending', html = :html, email_html = :email_html, made_at = :made_at, error = :error
WHERE org_id = :org_id AND id = :run_id AND claim = :claim
    AND NOT EXISTS (SELECT FROM contacts WHERE org_id = :org_id AND erased_at >= :made_at ::timestamptz - interval '2 minutes')
RETURNING true;

-- add_page_emails --
-- An email for each recipient; those of an earlier page of the run stay.
INSERT INTO page_emails (org_id, run_id, number, state)
SELECT :org_id ::bigint, :run_id ::uuid, number, 'waiting' FROM generate_series(1, :recipients ::integer) AS number
ON CONFLICT DO NOTHING;

-- list_page_emails --
SELECT number, state, attempts, in_doubt FROM page_emails WHERE org_id = :org_id AND run_id = :run_id ORDER BY number;

-- record_page_email --
-- Record an attempt before it is made and afterwards; no row if the claim has ended.
UPDATE page_emails SET state = :state, attempts = :attempts, in_doubt = :in_doubt, error = :error
WHERE org_id = :org_id AND run_id = :run_id AND number = :number AND state = 'waiting'
    AND EXISTS (SELECT FROM page_runs WHERE org_id = :org_id AND id = :run_id AND claim = :claim)
RETURNING true;

-- find_page_recipient --
-- The address of an email of a run, sealed; no row if there is no such email.
SELECT s.recipients[:number] FROM page_runs r
JOIN page_schedules s ON s.org_id = r.org_id AND s.id = r.schedule_id
WHERE r.org_id = :org_id AND r.id = :run_id AND :number <= cardinality(s.recipients);

-- fail_page_email --
-- Record that an email that was sent did not arrive. The run has failed if none of its emails is sent now.
WITH bounced AS (
    UPDATE page_emails SET state = 'failed', in_doubt = false, error = :error
    WHERE org_id = :org_id AND run_id = :run_id AND number = :number AND (state = 'sent' OR in_doubt)
    RETURNING org_id, run_id
)
UPDATE page_runs r SET state = 'failed' FROM bounced b
WHERE r.org_id = b.org_id AND r.id = b.run_id AND r.state = 'done' AND NOT EXISTS (
    SELECT FROM page_emails e
    WHERE e.org_id = :org_id AND e.run_id = :run_id AND e.number <> :number AND e.state = 'sent');

-- settle_page_run --
-- End a claim: the run is continued at `due_at`, or has ended in a state. `again`: the claim counts as a try that failed.
UPDATE page_runs SET state = :state, due_at = :due_at, error = coalesce(:error, error), tries = CASE WHEN :again THEN tries ELSE 0 END
WHERE org_id = :org_id AND id = :run_id AND claim = :claim;

-- list_page_runs --
-- The newest runs of a schedule, with what became of their emails.
SELECT r.id, r.at, r.state, r.made_at, r.error, r.html IS NOT NULL AS kept,
       count(e.number) FILTER (WHERE e.state = 'sent') AS sent,
       count(e.number) FILTER (WHERE e.state = 'waiting') AS waiting,
       count(e.number) FILTER (WHERE e.state = 'failed' AND NOT e.in_doubt) AS failed,
       count(e.number) FILTER (WHERE e.state = 'failed' AND e.in_doubt) AS unknown,
       max(e.error) AS email_error
FROM page_runs r
LEFT JOIN page_emails e ON e.org_id = r.org_id AND e.run_id = r.id
WHERE r.org_id = :org_id AND r.schedule_id = :schedule_id
GROUP BY r.org_id, r.id
ORDER BY r.at DESC
LIMIT :limit;

-- find_page --
-- The page that was made for a run; null if it is not kept.
SELECT html FROM page_runs
WHERE org_id = :org_id AND schedule_id = :schedule_id AND id = :run_id
    AND NOT EXISTS (SELECT FROM contacts WHERE org_id = :org_id AND erased_at >= made_at - interval '2 minutes');

-- delete_old_pages --
-- Delete runs that were planned some time ago and have ended.
DELETE FROM page_runs
WHERE org_id = :org_id AND id IN (
    SELECT id FROM page_runs
    WHERE org_id = :org_id AND due_at IS NULL AND at < :now ::timestamptz - :retention ::interval
    ORDER BY id LIMIT :limit);
