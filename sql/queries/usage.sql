-- What is metered: messages that were sent. Events that come in never are.

-- count_sent --
-- How many messages of each channel were sent from one moment until before another; channels without any are missing.
SELECT channel, count(*)
FROM message_outcomes
WHERE org_id = :org_id AND at >= :since AND at < :until AND outcome = 'sent'
GROUP BY channel;
