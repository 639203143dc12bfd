-- The same report for each of several segments.
{% for report in reports %}
{{ "UNION ALL" if not loop.first }}
SELECT CAST(:segment_{{ loop.index0 }} AS text) AS segment, r.* FROM (
{{ report }}
) r
{% endfor %}
